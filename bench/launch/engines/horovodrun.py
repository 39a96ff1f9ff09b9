"""horovodrun over Gloo: starts the ranks and a rendezvous server, gives each its HOROVOD_RANK."""

import importlib.util
import os
import sys
from pathlib import Path

from bench.config.options import RunConfig
from bench.errors import UserError
from bench.launch.node import Placement

GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"


def command(config: RunConfig, run_dir: Path, placement: Placement) -> tuple[list[str], dict[str, str]]:
    """The command line and the variables to add to the environment. Raises UserError when Horovod is missing.

    An engine variable that the user has set stays as it is, unless an option of the run sets it.
    """
    argv = start(len(placement.ranks), ["-m", "bench.worker", str(run_dir)])
    trace = {"HOROVOD_TIMELINE": str(run_dir.resolve() / ".rank0.horovod.json")} if config.profile else {}
    return argv, {**defaults(config), **knobs(config), **trace}


def start(num_ranks: int, program: list[str]) -> list[str]:
    """The command line that runs ``python *program`` on every rank, all on this machine. Raises UserError without
    Horovod."""
    if importlib.util.find_spec("horovod") is None:
        raise UserError("MODE=horovod needs Horovod, which is not installed here: run `bench install-horovod`")
    argv = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(num_ranks)]
    return [*argv, "-H", f"localhost:{num_ranks}", "--disable-cache", sys.executable, *program]


def defaults(config: RunConfig) -> dict[str, str]:
    """Engine variables that the user may have set otherwise."""
    return {GLOO_TIMEOUT: os.environ.get(GLOO_TIMEOUT, str(int(config.timeout) + 60))}


def knobs(config: RunConfig) -> dict[str, str]:
    """The options of a run that Horovod takes from the environment."""
    values = {
        "HOROVOD_FUSION_THRESHOLD": None if config.fusion_mb is None else int(config.fusion_mb * 2**20),  # bytes
        "HOROVOD_CYCLE_TIME": config.cycle_time_ms,
        "HOROVOD_AUTOTUNE": int(config.autotune) or None,
    }
    return {name: str(value) for name, value in values.items() if value is not None}
