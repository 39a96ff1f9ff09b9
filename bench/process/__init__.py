"""What every process of a run has: crash handling (guard), a heartbeat, what to do when it is told to end (ending), and
the only way to start, limit and end a command with all its processes (tree)."""
