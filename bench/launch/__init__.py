"""Start the processes of a run. launcher: a config in, the path of a record out. supervise: watches the nodes. node:
one machine. hosts, machine: several machines. joining, seat: ranks that an external launcher started.
engines/: how ranks start on one machine. Nothing here imports the worker."""
