"""One new process; DP's threads run inside it."""

import sys
from pathlib import Path

from bench.config.options import RunConfig
from bench.launch.placement import Placement


def command(config: RunConfig, run_dir: Path, placement: Placement) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-m", "bench.worker", str(run_dir)], {"RANK": "0"}
