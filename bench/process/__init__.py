"""What every process of a run has: crash handling (guard), a heartbeat, and one way to end a process tree (ending)."""
