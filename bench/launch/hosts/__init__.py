"""Where the machines of a run are: one file per kind of host, with ``nodes(config, run_dir)``.

To add one: its file, and its line here.
"""

from bench.launch.hosts import local, remote

HOSTS = {"local": local, "remote": remote}
