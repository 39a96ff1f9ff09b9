"""Runs a command on a node of the cluster that this process is in.

    python -m bench.launch.cluster.enter node2 hostname

It stands where ssh stands between real machines. The command has this environment and this folder, the files of the
machine are the same on every node, and its standard input and output are joined to the caller's.
"""

import json
import os
import sys
from pathlib import Path

from bench.errors import UserError
from bench.launch.cluster.plan import CLUSTER, DESCRIPTION

FAILED = 255  # as ssh says that it was not the command that failed


def main(words: list[str]) -> int:
    """Become the command, on its node. Returns only when that cannot be done."""
    try:
        name, *command = words or [""]
        node = find(name)
        if not command:
            raise UserError(
                "say which command to run there, as in `python -m bench.launch.cluster.enter node2 hostname`"
            )
        os.sched_setaffinity(0, node["cores"])
        there = ["nsenter", "--target", str(node["pid"]), "--net", "--uts", "--mount"]
        os.execvp("nsenter", [*there, "--", "env", f"--chdir={os.getcwd()}", *command])
    except (OSError, UserError) as error:
        print(f"enter: {error}", file=sys.stderr)
    return FAILED


def find(name: str) -> dict:
    """A node by its name or address. Raises UserError."""
    folder = os.environ.get(CLUSTER)
    if not folder:
        raise UserError('this is not inside of a cluster: `bench cluster --cmd "…"` makes one')
    nodes = json.loads((Path(folder) / DESCRIPTION).read_text())["nodes"]
    for node in nodes:
        if name in (node["name"], node["address"]):
            return node
    raise UserError(f"no node {name!r} in this cluster: there are {', '.join(node['name'] for node in nodes)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
