"""Starting the processes of a run: engines (how ranks start) x hosts (where their machines are).

launcher   one run: a config in, the path of a record out
supervise  watches the nodes of a run, and says which rank failed, where and why
elastic    what a run with ELASTIC survives, and on which machines it goes on
node       all that is done on one machine and needs a process id
agent      a node on another machine, which answers over a pipe; machine: what it says of itself before a run
joining    a run whose ranks somebody else's launcher has started; seat: what it says to each of them
command    the engine's command with its environment
engines/   in-process, spawn, torchrun, mpirun, horovodrun: each builds a command, a pure function
hosts/     this machine, and several of them by HOSTS
cluster/   several machines made of this one, as network namespaces

Nothing here imports the worker: a config goes across the process boundary, and a record comes back.
"""
