"""Tasks of the ranks of a run: training, or the task that the config's PROBE names: JSON, {name of the task: its plan}.
To add a task: its line here, and its module."""

import json
from dataclasses import dataclass

from bench.errors import UserError


@dataclass(frozen=True)
class Task:
    """module: has ``run(config: RunConfig, run_dir: Path, status: StatusWriter)``, which every rank calls: it joins by
    ``load_mode``, reports its phases to ``status``, and rank 0 writes a file to run_dir. leaves: that file, the sign
    that a run succeeded."""

    module: str
    leaves: str


TRAIN = "train"  # without PROBE
TASKS = {
    TRAIN: Task("bench.training.task", "record.json"),
    "network": Task("bench.tasks.network.rank", "network.json"),
    "predict": Task("bench.tasks.inference.rank", "predictions.csv"),
    "emulate": Task("bench.predict.emulation.rank", "emulation.json"),
}


def text_of(name: str, plan) -> str:
    return json.dumps({name: plan})


def parse(probe: str) -> tuple[str, object]:
    try:
        ((name, plan),) = json.loads(probe).items()
    except (ValueError, AttributeError, RecursionError):
        name = plan = None
    planned = [task for task in TASKS if task != TRAIN]
    if name not in planned:
        raise UserError(f"PROBE={probe[:60]}: not a plan of {', '.join(planned)}; leave PROBE out, its command sets it")
    return name, plan
