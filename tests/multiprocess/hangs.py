"""`bench` for runs that hang: ``python -m tests.multiprocess.hangs run …``.

Several of them start at once on a busy machine, so their ranks may take long to join, and are still to be found soon
where they hang: TIMEOUT counts from when all have joined.
"""

import functools
import sys
from unittest import mock

from bench import __main__ as cli
from bench.launch import supervise

STARTING_S = 240.0


def slow_start():
    """What is launched under this context manager may take STARTING_S to join."""
    return mock.patch.object(supervise, "run", functools.partial(supervise.run, starting=STARTING_S))


if __name__ == "__main__":
    with slow_start():
        sys.exit(cli.main())
