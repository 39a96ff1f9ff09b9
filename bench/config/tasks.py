"""What the ranks of a run may do instead of training. The config's PROBE names one of these tasks and holds its plan.

PROBE is JSON: {name of the task: its plan}. To add a task: its line here, and its folder (bench/without_training).
"""

import json
from dataclasses import dataclass

from bench.errors import UserError


@dataclass(frozen=True)
class Task:
    """module: has ``run(config, run_dir, status)``, which every rank calls. leaves: the file that a run has left in its
    folder when it has ended well."""

    module: str
    leaves: str


TASKS = {
    "network": Task("bench.without_training.network.rank", "network.json"),
    "predict": Task("bench.without_training.prediction.rank", "predictions.csv"),
    "emulate": Task("bench.without_training.emulation.rank", "emulation.json"),
}


def text_of(name: str, plan) -> str:
    """A plan as PROBE holds it. plan: what JSON takes."""
    return json.dumps({name: plan})


def parse(probe: str) -> tuple[str, object]:
    """The name of the task and its plan. Raises UserError for anything but one task.

    >>> parse(text_of("predict", [1, 2]))
    ('predict', [1, 2])
    """
    try:
        ((name, plan),) = json.loads(probe).items()
    except (ValueError, AttributeError, RecursionError):
        name = plan = None
    if name not in TASKS:
        raise UserError(f"PROBE={probe[:60]}: not a plan of {', '.join(TASKS)}; leave PROBE out, its command sets it")
    return name, plan
