"""Getting what a run needs onto this machine: the environment, and a Horovod that fits the installed torch.

`packages.py` is what `make` calls first, on a bare Python. `horovod_install.py` is `bench install-horovod`.
Nothing here imports torch.
"""
