"""One check in a process of its own: ``python -m bench.proof.gpu_check.child FOLDER``.

What comes in: FOLDER/task.json. What goes out: FOLDER/answer.json, and what the check prints, for its log.
"""

import json
import math
import sys
import traceback
from pathlib import Path

from bench.config.options import from_dict
from bench.errors import BenchError
from bench.proof.gpu_check.base import FAILED, NOT_EXERCISED, PROVEN, NotExercised, part_in
from bench.proof.gpu_check.ground import Ground


def main() -> None:
    """Make the check, and write what came of it."""
    folder = Path(sys.argv[1])
    task = json.loads((folder / "task.json").read_text())
    (check,) = [each for each in part_in(task["module"]).checks if each.name == task["check"]]
    ground = Ground(from_dict(task["asked"]), task["num_gpus"], task["runs"])
    found = {"figures": {}, "reason": ""}
    try:
        answer = check.run(ground)
        found |= {"outcome": PROVEN if answer.ok else FAILED, "figures": clean(answer.figures)}
    except NotExercised as why:
        found |= {"outcome": NOT_EXERCISED, "reason": str(why)}
    except BenchError as error:
        found |= {"outcome": FAILED, "reason": str(error)}
    except Exception as error:
        traceback.print_exc()
        found |= {"outcome": FAILED, "reason": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    found["reason"] = found["reason"].replace(str(Path.home()), "~")
    (folder / "answer.json").write_text(json.dumps(found | {"runs": ground.runs}, allow_nan=False))


def clean(figures: dict) -> dict:
    """Figures that JSON can hold: what is no number becomes a word.

    >>> clean({"a": 1.5, "b": float("nan"), "c": None})
    {'a': 1.5, 'b': 'nan', 'c': None}
    """
    return {name: str(f) if isinstance(f, float) and not math.isfinite(f) else f for name, f in figures.items()}


if __name__ == "__main__":
    main()
