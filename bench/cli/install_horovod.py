"""`bench install-horovod`: Horovod 0.28.1 on the torch that is installed."""

import contextlib
import sys

from bench.cli.base import warn
from bench.config.modes import MODES
from bench.errors import BenchError
from bench.install import horovod_install


def run(args) -> int:
    """Install it if it is not there yet. Raises UserError or BenchError with one line."""
    horovod_install.install(args.gpu, bool(args.force), args.wheel_dir, args.jobs, args.timeout, bool(args.mpi))
    return 0


def provide(args) -> None:
    """Before a command that can use Horovod, where make called it: install it, unless MODE needs none. Where that fails
    the command goes on, but for a MODE that needs it. What it says goes to standard error."""
    name = getattr(args, "mode", None)
    mode = MODES.get(name)
    if name is not None and not (mode and mode.needs):
        return
    try:
        with contextlib.redirect_stdout(sys.stderr):
            horovod_install.install(quiet=True)
    except BenchError as error:
        if mode:
            raise
        warn(f"bench: {error}")
