"""`bench` for runs that hang: ``python -m tests.multiprocess.hangs run …``.

Several of them start at once on a busy machine, so their ranks may take long to join, and are still to be found soon
where they hang: TIMEOUT counts from when all have joined.
"""

import functools
import inspect
import os
import sys
from unittest import mock

from bench import __main__ as cli
from bench.launch import supervise


def slow_start():
    """What is launched under this context manager may take four minutes to join."""
    return mock.patch.object(supervise, "run", functools.partial(supervise.run, starting=240.0))


def with_horovods_wait(num_outputs: int):
    """A network of ranks that wait as Horovod does, which takes a core, also where they are copies: all share one."""
    from tests.small_resnets import two_blocks

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    library = sys.modules["horovod.torch.mpi_lib_v2"]
    library.horovod_torch_wait_and_clear = inspect.unwrap(library.horovod_torch_wait_and_clear)
    return two_blocks(num_outputs)


if __name__ == "__main__":
    with slow_start():
        sys.exit(cli.main())
