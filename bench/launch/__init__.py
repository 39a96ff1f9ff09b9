"""Starting processes: one file an engine. Each builds a command, a pure function; ``supervise`` runs it with a limit.

Nothing here imports the worker: a config goes across the process boundary, and a record comes back.
"""
