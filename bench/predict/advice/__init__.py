"""`bench predict mode`: which mode to use, from measured rounds and from predictions. It imports no torch."""
