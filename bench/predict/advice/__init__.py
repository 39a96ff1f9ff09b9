"""`bench advise`: which data-parallel mode to use, from measured rounds and from forecasts. It imports no torch."""
