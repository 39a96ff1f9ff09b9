"""Starting the processes of a run.

launcher   one run: a config in, the path of a record out
supervise  watches the nodes of a run, and says which rank failed, where and why
elastic    what a run with ELASTIC survives, and on which machines it goes on
node       all that is done on one machine and needs a process id
hosts      HOSTS: starts one process on each machine (on_machine), which starts ranks that join; machine: what each says
           of itself before a run
joining    a run whose ranks a launcher on each machine has started; seat: what that says to each of them
command    the engine's command with its environment
engines/   in-process, spawn, torchrun, mpirun, horovodrun: each builds a command, a pure function
cluster/   several machines made of this one, as network namespaces

Nothing here imports the worker: a config goes across the process boundary, and a record comes back.
"""
