"""horovodrun over Gloo: starts the ranks and a rendezvous server, gives each its HOROVOD_RANK."""

import importlib.util
import os
import sys
from pathlib import Path

from bench.config import RunConfig
from bench.errors import UserError

# TUNED=1: Horovod's background thread looks for work once a cycle. Every millisecond (the default) it takes the
# core from the training thread and sends many small reductions; every 10 ms it wakes less and sends large ones, and
# the last reduction of a step waits for it 10 ms at most.
TUNED = {"HOROVOD_CYCLE_TIME": "10"}


def command(config: RunConfig, run_dir: Path) -> tuple[list[str], dict[str, str]]:
    """The command line and the variables to add to the environment. Raises UserError when Horovod is missing.

    An engine variable that the user has set stays as it is.
    """
    if importlib.util.find_spec("horovod") is None:
        raise UserError("MODE=horovod needs Horovod, which is not installed here: run `bench install-horovod`")
    argv = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(config.num_devices)]
    argv += ["-H", f"localhost:{config.num_devices}", "--disable-cache"]
    argv += [sys.executable, "-m", "bench.worker", str(run_dir)]
    engine = {"HOROVOD_GLOO_TIMEOUT_SECONDS": str(int(config.timeout) + 1), **(TUNED if config.tuned else {})}
    return argv, {name: os.environ.get(name, value) for name, value in engine.items()}
