"""The worker process, started by a launcher once per rank:

    python -m bench run --mode ddp --gpus 2         # starts two of them; the run's folder is in its last line
    RANK=0 python -m bench.worker RUN_DIR           # one by hand: RUN_DIR/config.json of a run with one process

What comes in: RUN_DIR/config.json, and a rank in the environment, in the variable that the launcher names as RANK_IN.
What goes out: RUN_DIR/rank<r>.log, and from rank 0 the file that the config's task leaves (bench/config/tasks.py). A
process that fails leaves RUN_DIR/.rank<r>.error.json and ends at once.

What a rank does is a task: bench/training/task.py trains.
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
    """Set up what must work even when everything else fails, then run."""
    run_dir = Path(sys.argv[1])
    rank = int(os.environ[os.environ.get(RANK_IN, "RANK")])
    with hosts_rank(run_dir) if os.environ.get(JOINS) else Guard(run_dir, rank) as guard:
        config = from_dict(json.loads((run_dir / "config.json").read_text()))
        guard.status = guard.status or StatusWriter(run_dir, rank)
        run_task(config, run_dir, guard.status)


def hosts_rank(run_dir: Path) -> Guard:
    """Over HOSTS the ranks watch themselves: no launcher sees the processes of all of them."""
    from bench.launch.joining import of_hosts

    return of_hosts(run_dir)


def run_task(config: RunConfig, run_dir: Path, status: StatusWriter) -> None:
    """Do what the config says that ranks do. Its module is imported here, when crash handling is in place."""
    importlib.import_module(TASKS[config.task].module).run(config, run_dir, status)


if __name__ == "__main__":
    main()
