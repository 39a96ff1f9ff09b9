"""Run a command on a node of this cluster, as ssh does on a machine:
``python -m bench.cluster.enter node2 hostname``."""

import json
import os
import sys
from pathlib import Path

from bench.cluster.plan import CLUSTER, DESCRIPTION
from bench.errors import UserError

FAILED = 255  # ssh's exit code for an error of ssh itself, not of the command


def main(words: list[str]) -> int:
    """Become the command, on its node. Returns only when that cannot be done."""
    try:
        if len(words) < 2:
            raise UserError("name a node and a command, as in `python -m bench.cluster.enter node2 hostname`")
        if not (folder := os.environ.get(CLUSTER)):
            raise UserError('this is not inside a cluster: `bench cluster --cmd "…"` makes one')
        nodes = json.loads((Path(folder) / DESCRIPTION).read_text())["nodes"]
        node = next((node for node in nodes if words[0] in (node["name"], node["address"])), None)
        if not node:
            names = ", ".join(node["name"] for node in nodes)
            raise UserError(f"no node {words[0]!r} in this cluster: there are {names}")
        os.sched_setaffinity(0, node["cores"])
        there = ["nsenter", "--target", str(node["pid"]), "--net", "--uts", "--mount"]
        os.execvp("nsenter", [*there, "--", "env", f"--chdir={os.getcwd()}", *words[1:]])
    except (OSError, UserError) as error:
        print(f"enter: {error}", file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
