"""The worker process, started by a launcher once per rank:

    python -m bench run --mode ddp --gpus 2         # starts two of them; the run's folder is in its last line
    RANK=0 python -m bench.worker RUN_DIR           # one by hand: RUN_DIR/config.json of a run with one process

Input: RUN_DIR/config.json, and a rank in the environment variable that the launcher names as RANK_IN. Output:
RUN_DIR/rank<r>.log, and from rank 0 the file of the config's task (bench/config/tasks.py). A process that fails writes
RUN_DIR/.rank<r>.error.json and ends immediately.

A rank runs a task: bench/training/task.py trains.
"""

import importlib
import json
import os
import sys
from pathlib import Path

from bench.config.options import RunConfig, from_dict
from bench.config.tasks import TASKS
from bench.process.guard import JOINS, RANK_IN, Guard
from bench.process.heartbeat import StatusWriter


def main() -> None:
    """Set up crash handling first, then run."""
    run_dir = Path(sys.argv[1])
    rank = int(os.environ[os.environ.get(RANK_IN, "RANK")])
    with hosts_rank(run_dir) if os.environ.get(JOINS) else Guard(run_dir, rank) as guard:
        config = from_dict(json.loads((run_dir / "config.json").read_text()))
        guard.status = guard.status or StatusWriter(run_dir, rank)
        run_task(config, run_dir, guard.status)


def hosts_rank(run_dir: Path) -> Guard:
    """Over HOSTS the ranks watch themselves, because no launcher sees all processes."""
    from bench.launch.joining import of_hosts

    return of_hosts(run_dir)


def run_task(config: RunConfig, run_dir: Path, status: StatusWriter) -> None:
    """Run the config's task. Its module is imported here, after crash handling is set up."""
    importlib.import_module(TASKS[config.task].module).run(config, run_dir, status)


if __name__ == "__main__":
    main()
