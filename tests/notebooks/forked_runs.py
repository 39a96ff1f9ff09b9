"""`bench` for the chapters' tests: ``python -m tests.notebooks.forked_runs`` with its arguments. The ranks of what it
launches begin with torch imported (tests/forked_programs.py), and live the worker's life.

What depends on how processes start has its own launch. How runs are launched is tested in tests/multiprocess, and from
a notebook in test_commands.py.
"""

import os
import sys
import time
from pathlib import Path

from bench import cli
from bench.config.options import RunConfig
from bench.launch.hosts import HOSTS, local
from bench.launch.node import Node, Placement
from bench.process.guard import LAUNCHER_PID
from tests import forked_programs
from tests.meeting import Meeting

STARTUP = f"""
import sys as _sys
import bench.course as _course
_sys.modules["bench.course.shell"].PROGRAMS["bench"] = [_sys.executable, "-m", "{__name__}"]
del _sys, _course
"""


def variables(programs: forked_programs.Programs) -> dict[str, str]:
    """The environment of a kernel whose ``course.bench`` is this one: IPython runs STARTUP first."""
    startup = Path(programs.folder) / "profile_default" / "startup" / "00_bench.py"
    startup.parent.mkdir(parents=True, exist_ok=True)
    startup.write_text(STARTUP)
    return programs.variables | {"IPYTHONDIR": str(programs.folder)}


class Forked(Node):
    """A node whose ranks are forked."""

    def __init__(self, config: RunConfig, run_dir: Path):
        super().__init__(Placement(ranks=range(config.num_processes)), run_dir)
        self.meeting = Meeting(config.num_processes) if config.mode == "horovod" else None

    def start(self, argv: list[str], environment: dict) -> None:
        ranks = [str(rank) for rank in self.placement.ranks]
        names = ["RANK", "LOCAL_RANK", *(["HOROVOD_RANK", "HOROVOD_LOCAL_RANK"] if self.meeting else [])]
        environment = {**environment, LAUNCHER_PID: str(os.getpid()), "WORLD_SIZE": str(len(ranks))}
        environment |= {"BENCH_INIT_METHOD": f"file://{self.run_dir.resolve()}/.rendezvous"}
        environment |= self.meeting.variables() if self.meeting else {}
        self.process = forked_programs.start(
            "bench.worker", [str(self.run_dir)], environment, self.run_dir / "launcher.log",
            tuple(dict.fromkeys(names, rank) for rank in ranks),
        )  # fmt: skip

    def end(self) -> None:
        while self.process.pid is None and self.process.poll() is None:
            time.sleep(0.01)
        super().end()
        if self.meeting:
            self.meeting.close()


def nodes(config: RunConfig, run_dir: Path) -> list[Node]:
    """As of a host of bench/launch/hosts."""
    if config.launcher == "spawn" or config.dist_url or config.fault:
        return local.nodes(config, run_dir)
    return [Forked(config, run_dir)]


if __name__ == "__main__":
    HOSTS["local"] = sys.modules[__name__]
    sys.exit(cli.main())
