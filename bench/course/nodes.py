"""``run_on_nodes``: a function of a notebook on nodes with limited links, one rank on each.

The nodes are those of `make cluster`. The pickled function and the results go through files.
"""

import pickle
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.course.ranks import pickle_call
from bench.course.shell import execute, flags, program


def run_on_nodes(function: Callable, num_nodes: int, *arguments, link: str, timeout: float = 200.0) -> list:
    """Call ``function(*arguments)`` on one process per node, which have joined the default process group (Gloo);
    returns the results by rank. link: LINK of `make cluster`, as "100mbit". timeout: seconds for all of it.

    Raises UserError where the system has no network namespaces, or if the function cannot be pickled; RunFailed when a
    rank fails. No process and no file is left.
    """
    call = pickle_call(function, arguments)
    with tempfile.TemporaryDirectory(prefix="nodes-") as folder:
        Path(folder, "call").write_bytes(call)
        command = shlex.join([sys.executable, "-m", "bench.course.node_ranks", folder, str(num_nodes)])
        execute([*program("bench"), "cluster", *flags({"NODES": num_nodes, "LINK": link, "CMD": command})], timeout)
        return [pickle.loads(Path(folder, f"result{rank}").read_bytes()) for rank in range(num_nodes)]
