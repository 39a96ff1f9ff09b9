"""`bench emulate`: real engines and messages, while computation is a wait, so that nodes can outnumber cores."""
