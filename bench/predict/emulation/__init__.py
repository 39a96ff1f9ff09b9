"""`bench cluster emulate`: real messages, while computation is a wait, so that nodes can outnumber cores."""
