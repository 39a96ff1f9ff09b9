"""How long OpenMP threads that wait for each other spin before they yield their core.

By default threads spin for milliseconds (libgomp) or 200 ms (Intel's and LLVM's OpenMP) between two operations. On a
machine that is not idle, a spinning thread keeps the core from the thread that it waits for. One process with several
threads then loses much more than processes with one thread, which biases a comparison. So all processes of all modes
spin for a bounded time. `python -m tests.validation.wait_policy` measures the effect.
"""

import os
import re
from collections.abc import Iterable, Mapping

from bench.files import PROC

# libgomp's unit is loop iterations, that of the others milliseconds.
BOUNDED = {"GOMP_SPINCOUNT": "30000", "KMP_BLOCKTIME": "5"}
READ_BY = {
    "libgomp": ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"),
    "libiomp": ("KMP_LIBRARY", "KMP_BLOCKTIME", "OMP_WAIT_POLICY"),
    "libomp": ("KMP_LIBRARY", "KMP_BLOCKTIME", "OMP_WAIT_POLICY"),
}
SETTINGS = {name for names in READ_BY.values() for name in names}
DEFAULT = "default of the OpenMP runtime"


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables for a process that imports torch; empty if the user has set a policy."""
    return {} if SETTINGS & set(environment) else dict(BOUNDED)


def policy(environment: Mapping[str, str], runtimes: Iterable[str]) -> str:
    """How long threads wait in a process with these OpenMP runtimes.

    >>> policy(BOUNDED, ["libgomp"]), policy({"OMP_WAIT_POLICY": "active"}, ["libgomp"]), policy({}, ["libiomp"])
    ('libgomp GOMP_SPINCOUNT=30000', 'libgomp OMP_WAIT_POLICY=active', 'libiomp default of the OpenMP runtime')
    """
    said = []
    for runtime in runtimes:
        found = [f"{name}={environment[name]}" for name in READ_BY[runtime] if name in environment]
        said.append(f"{runtime} {' '.join(found) or DEFAULT}")
    return ", ".join(said) or "no OpenMP runtime"


def bounded(said: str) -> bool:
    """Whether a ``policy`` is the one that is set for every mode.

    >>> bounded(policy(BOUNDED, ["libgomp", "libiomp"])), bounded(policy({"GOMP_SPINCOUNT": "1"}, ["libgomp"]))
    (True, False)
    """
    return said == policy(BOUNDED, [name for name in READ_BY if name in said.split()])


def in_this_process() -> str:
    mapped = PROC / "self" / "maps"
    libraries = {line.rpartition("/")[2] for line in mapped.read_text().splitlines()} if mapped.exists() else ()
    loaded = [name for name in READ_BY if any(re.match(rf"{name}\d*[-.]", library) for library in libraries)]
    return policy(os.environ, loaded)
