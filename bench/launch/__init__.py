"""Starting the processes of a run: engines (how ranks start) x hosts (where their machines are).

launcher   one run: a config in, the path of a record out
supervise  watches the nodes of a run, and says which rank failed, where and why
node       all that is done on one machine and needs a process id
engines/   in-process, spawn, torchrun, horovodrun: each builds a command, a pure function
hosts/     this machine

Nothing here imports the worker: a config goes across the process boundary, and a record comes back.
"""
