"""Runs each check in its own process with a limit, saves each finding immediately, and makes the tables.

A check that was answered by the same code, options and GPUs is not repeated. One that would exceed the budget is not
started.
"""

import contextlib
import datetime
import hashlib
import json
import math
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from bench.analysis.tables import Grid
from bench.config.options import RunConfig, from_dict, to_dict
from bench.errors import BenchError, UserError
from bench.files import PROJECT, atomic_write
from bench.install.horovod_status import torch_version
from bench.measure.environment import source_hash
from bench.measure.nvml import Gpu
from bench.process import tree
from bench.proof.gpu_check.base import FAILED, NOT_EXERCISED, PROVEN, Check, NotExercised, part_in
from bench.proof.gpu_check.ground import CHOSEN, Ground, unmet_need

FILE, LOGS, VERSION = "gpu-check.json", "gpu-check-logs", 1
GRACE_S = 12.0  # an interrupted run ends its ranks, and writes its record


class Findings:
    """The newest finding of each check, in OUT/gpu-check.json, which is replaced after each. Raises UserError for an
    unreadable file."""

    def __init__(self, out: Path):
        self.path = out / FILE
        self.found = self.read()

    def read(self) -> dict[tuple, dict]:
        try:
            kept = json.loads(self.path.read_text())
            if kept["version"] != VERSION:
                raise ValueError(f"version {kept['version']}")
            return {(each["part"], each["check"]): each for each in kept["findings"]}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.path} cannot be read ({error}): move it away, and start again") from None

    def answer_to(self, check: Check, key: str) -> dict | None:
        """The answer to a check by this key, or None."""
        found = self.found.get((check.part, check.name))
        return found if found and found["key"] == key and found["outcome"] != NOT_EXERCISED else None

    def runs(self, key: str) -> dict[str, str]:
        return {options: folder for found in self.found.values() if found["key"] == key
                for options, folder in found["runs"].items()}  # fmt: skip

    def add(self, found: dict) -> None:
        """Save a finding next to those of calls for other parts. One that was not exercised does not replace an answer,
        even of other code."""
        place, self.found = (found["part"], found["check"]), self.read()
        if found["outcome"] == NOT_EXERCISED and self.found.get(place, found)["outcome"] != NOT_EXERCISED:
            return
        self.found[place] = found
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.path) as path:
            path.write_text(json.dumps({"version": VERSION, "findings": list(self.found.values())}, indent=1))


def key_of(asked: RunConfig, gpus: list[Gpu]) -> str:
    """A hash of the code, the options, torch, and the kinds of GPUs: in a cluster every job gets another one."""
    options = {name: to_dict(asked)[name] for name in CHOSEN if name != "out"}
    code = source_hash("proof", "studies", text=False)
    text = json.dumps([code, options, torch_version(), [gpu.name for gpu in gpus], sys.version])
    return hashlib.sha256(text.encode()).hexdigest()


def run_checks(
    modules: list[str], asked: RunConfig, gpus: list[Gpu], budget_s: float, say: Callable[[str], object]
) -> list[dict]:
    """Run the checks of these parts in order; ``say`` gets each finding. Records and findings go to ``asked.out``.
    Raises KeyboardInterrupt on Ctrl-C; earlier findings are kept."""
    ends, key, findings = time.monotonic() + budget_s, key_of(asked, gpus), Findings(Path(asked.out))
    results = []
    for module in modules:
        for check in part_in(module).checks:
            if before := findings.answer_to(check, key):
                results.append(before)
                say(f"{sentence(before)}; answered before, not repeated")
                continue
            left = ends - time.monotonic()
            began = time.monotonic()
            if why := why_not(check, gpus, left):
                found = {"outcome": NOT_EXERCISED, "reason": why, "figures": {}, "runs": {}}
            else:
                found = make(module, check, asked, len(gpus), findings.runs(key), left)
            found = {
                "part": check.part, "check": check.name, "question": check.question, **found,
                "seconds": round(time.monotonic() - began, 1), "key": key,
                "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            }  # fmt: skip
            findings.add(found)
            results.append(found)
            say(sentence(found))
    return results


def why_not(check: Check, gpus: list[Gpu], left_s: float) -> str:
    if need := unmet_need(check.needs, gpus):
        return f"needs {need}"
    if check.seconds > left_s:
        return f"budget: it takes {check.seconds:.0f} s, and {max(0, left_s):.0f} s are left"
    return ""


def make(module: str, check: Check, asked: RunConfig, num_gpus: int, runs: dict, left_s: float) -> dict:
    """One check in its own process: outcome, figures, reason, runs. At its limit, or the budget's end, it is ended with
    all its processes. The log is kept in OUT unless it was proven."""
    log = Path(asked.out) / LOGS / f"{check.part}-{re.sub(r'[^A-Za-z0-9.=-]', '-', check.name)}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-gpu-check-") as folder:
        task = {"module": module, "check": check.name, "asked": to_dict(asked), "num_gpus": num_gpus, "runs": runs}
        (Path(folder) / "task.json").write_text(json.dumps(task))
        code = run_child(folder, log, min(check.limit_s, left_s))
        found = None
        with contextlib.suppress(OSError, ValueError):
            if code is not None:  # an ended run reports an interrupt
                found = json.loads((Path(folder) / "answer.json").read_text())
    if found is None:
        nothing = {"figures": {}, "runs": {}}
        if code is not None:
            said = (log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
            found = {"outcome": FAILED, "reason": f"its process ended with code {code}: {said[:300]}", **nothing}
        elif left_s < check.limit_s:
            found = {"outcome": NOT_EXERCISED, "reason": f"the budget ended after {left_s:.0f} s of it", **nothing}
        else:
            found = {"outcome": FAILED, "reason": f"it hung: ended after {check.limit_s:.0f} s", **nothing}
    if found["outcome"] == PROVEN:
        log.unlink()
        with contextlib.suppress(OSError):  # not empty
            log.parent.rmdir()
    return found


def run_child(folder: str, log: Path, limit_s: float) -> int | None:
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    variables = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "bench.proof.gpu_check.runner", folder]
    with log.open("wb") as file:
        return tree.run(command, limit_s, alone_s=GRACE_S, env=variables, stdout=file, stderr=file)


def main() -> None:
    """One check in its own process, ``python -m bench.proof.gpu_check.runner FOLDER``: task.json -> answer.json."""
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
    """Figures for JSON, which has no nan."""
    return {name: str(f) if isinstance(f, float) and not math.isfinite(f) else f for name, f in figures.items()}


# --- in words -----------------------------------------------------------------------------------------------------


def sentence(found: dict) -> str:
    return f"{found['part']} {found['check']}: {found['outcome']}: {rests_on(found)} ({found['seconds']:.0f} s)"


def rests_on(found: dict) -> str:
    said = {name: value for name, value in found["figures"].items() if value not in (None, "")}
    words = [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in said.items()]
    return "; ".join(filter(None, [found["reason"], ", ".join(words)])) or "yes"


def table(results: list[dict]) -> Grid:
    rows = [[found["part"], found["check"], found["outcome"], rests_on(found)] for found in results]
    return Grid([("part", False), ("check", False), ("outcome", False), ("reason or figures", False)], rows)


def counted(results: list[dict]) -> str:
    outcomes = [found["outcome"] for found in results]
    return ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in (PROVEN, FAILED, NOT_EXERCISED))


def plan(modules: list[str], findings: Findings | None = None, key: str = "", num_gpus: int = 1) -> list[str]:
    lines, total = [], 0.0
    for module in modules:
        part = part_in(module)
        seconds = part.seconds_on(num_gpus)
        lines.append(f"{part.name} {part.title}: {len(part.checks)} checks, {seconds / 60:.1f} minutes at most")
        total += seconds
        for check in part.checks:
            needs = f" [needs {', '.join(check.needs)}]" if check.needs else ""
            before = findings and findings.answer_to(check, key)
            done = f" ({before['outcome']} before)" if before else ""
            lines.append(f"  {check.seconds:4.0f} s  {check.name}{done}: {check.question}{needs}")
    where = "a recent GPU" if num_gpus == 1 else f"{num_gpus} recent GPUs"
    return [*lines, f"in all {total / 60:.0f} minutes at most on {where}"]


if __name__ == "__main__":
    main()
