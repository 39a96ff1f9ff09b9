"""Install what a run needs: the environment (packages.py, which `make` runs on a bare Python) and a Horovod that fits
the installed torch (horovod_install.py). Nothing here imports torch."""
