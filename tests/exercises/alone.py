"""A stand-in for ``course.run_on_ranks``: the function on one rank of one, forked from this process.

It takes a fraction of a second, and is enough to see that an answer is missing: the function gets as far as the answer,
and that raises.
"""

import os

from bench.course.rank import ENGINES
from bench.errors import RunFailed
from bench.launch.ports import free_port


def run_on_ranks(function, num_ranks: int, *arguments, engine: str = "torch", **options) -> None:
    """Raises RunFailed with what the function raises, and when it raises nothing: there is no result to be had."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, error_of(function, arguments, engine).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    raise RunFailed(f"rank 0 raised {said}")


def error_of(function, arguments: tuple, engine: str) -> str:
    """What a function raises on the only rank of a group, as one line."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", **address)
    try:
        ENGINES[engine][0]()
        function(*arguments)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
