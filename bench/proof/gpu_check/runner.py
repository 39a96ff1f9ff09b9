"""Which checks are begun, each in a process of its own with a limit; what was found, kept at once; the tables.

A check that was answered before by the same code, with the same options on the same GPUs, is not made again. One that
would take longer than what is left of the budget is not begun.
"""

import contextlib
import datetime
import hashlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.analysis.tables import Grid
from bench.config.options import RunConfig, to_dict
from bench.errors import UserError
from bench.files import PROJECT, written_whole
from bench.install.horovod_status import torch_version
from bench.measure.environment import source_hash
from bench.measure.nvml import Gpu
from bench.process import tree
from bench.proof.gpu_check.base import FAILED, NOT_EXERCISED, PROVEN, Check, part_in
from bench.proof.gpu_check.ground import CHOSEN
from bench.proof.gpu_check.needs import lacking

FILE, LOGS, VERSION = "gpu-check.json", "gpu-check-logs", 1
GRACE_S = 12.0  # a run that is interrupted ends its ranks, and writes its record
OUTCOMES = (PROVEN, FAILED, NOT_EXERCISED)


class Findings:
    """What was found, one finding a check, the newest; in OUT/gpu-check.json, which is written whole after each.

    Raises UserError for a file that is none of this."""

    def __init__(self, out: Path):
        self.path = out / FILE
        self.found = self.read()

    def read(self) -> dict[tuple, dict]:
        """(part, check) -> its finding, as the file has them now."""
        try:
            kept = json.loads(self.path.read_text())
            if kept["version"] != VERSION:
                raise ValueError(f"version {kept['version']}")
            return {(each["part"], each["check"]): each for each in kept["findings"]}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.path} cannot be read ({error}): move it away, and begin anew") from None

    def of(self, check: Check, key: str) -> dict | None:
        """The finding of a check, by the same code, options and GPUs; None where there is none."""
        found = self.found.get((check.part, check.name))
        return found if found and found["key"] == key else None

    def runs(self, key: str) -> dict[str, str]:
        """What these findings have run: options -> folder."""
        mine = [found["runs"] for found in self.found.values() if found["key"] == key]
        return {options: folder for runs in mine for options, folder in runs.items()}

    def add(self, found: dict) -> None:
        """Keep a finding, beside those that a call for another part has written meanwhile. What was not exercised
        replaces no answer, though one of other code."""
        place, self.found = (found["part"], found["check"]), self.read()
        if found["outcome"] == NOT_EXERCISED and self.found.get(place, found)["outcome"] != NOT_EXERCISED:
            return
        self.found[place] = found
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(self.path) as path:
            path.write_text(json.dumps({"version": VERSION, "findings": list(self.found.values())}, indent=1))


def key_of(asked: RunConfig, gpus: list[Gpu]) -> str:
    """What an answer rests on: what the code does, the options, torch, and which GPUs, by their kind: a cluster gives
    another one of them to every job. A hash."""
    options = {name: to_dict(asked)[name] for name in CHOSEN if name != "out"}
    code = source_hash("proof", "studies", text=False)
    text = json.dumps([code, options, torch_version(), [gpu.name for gpu in gpus], sys.version])
    return hashlib.sha256(text.encode()).hexdigest()


def carry_out(
    modules: list[str], asked: RunConfig, gpus: list[Gpu], budget_s: float, say: Callable[[str], object]
) -> list[dict]:
    """Make the checks of these parts, in order, and return the finding of each. ``say`` is told each at once.

    asked: the options; records and findings go to its ``out``. gpus: those that may be used. budget_s: for all of it.
    Raises KeyboardInterrupt on Ctrl-C; what was found until then is kept.
    """
    ends, key, findings = time.monotonic() + budget_s, key_of(asked, gpus), Findings(Path(asked.out))
    results = []
    for module in modules:
        for check in part_in(module).checks:
            before = findings.of(check, key)
            if before and before["outcome"] != NOT_EXERCISED:
                results.append(before)
                say(f"{sentence(before)}; answered before, and not asked again")
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
    """Why a check is not begun; "" where it is."""
    if need := lacking(check.needs, gpus):
        return f"needs {need}"
    if check.seconds > left_s:
        return f"budget: it takes {check.seconds:.0f} s, and {max(0, left_s):.0f} s are left"
    return ""


def make(module: str, check: Check, asked: RunConfig, num_gpus: int, runs: dict, left_s: float) -> dict:
    """One check in a process of its own: outcome, figures, reason, runs. It is ended at its limit, or with the budget,
    with all that it has started. The log of one that was not proven is kept in OUT."""
    log = Path(asked.out) / LOGS / f"{check.part}-{re.sub(r'[^A-Za-z0-9.=-]', '-', check.name)}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-gpu-check-") as folder:
        task = {"module": module, "check": check.name, "asked": to_dict(asked), "num_gpus": num_gpus, "runs": runs}
        (Path(folder) / "task.json").write_text(json.dumps(task))
        code = run_child(folder, log, min(check.limit_s, left_s))
        found = None if code is None else answer_in(Path(folder))  # a run that is ended calls itself interrupted
    if found is None:
        nothing = {"figures": {}, "runs": {}}
        if code is not None:
            said = (log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
            found = {"outcome": FAILED, "reason": f"its process ended with code {code}: {said[:300]}", **nothing}
        elif left_s < check.limit_s:
            found = {"outcome": NOT_EXERCISED, "reason": f"the budget was over after {left_s:.0f} s of it", **nothing}
        else:
            found = {"outcome": FAILED, "reason": f"it hung: ended after {check.limit_s:.0f} s", **nothing}
    if found["outcome"] == PROVEN:
        log.unlink()
        with contextlib.suppress(OSError):  # other logs are in it
            log.parent.rmdir()
    return found


def run_child(folder: str, log: Path, limit_s: float) -> int | None:
    """Run the check's process, and end all that is left of it: its exit code, or None where it was ended."""
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    variables = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "bench.proof.gpu_check.child", folder]
    with log.open("wb") as file:
        return tree.run(command, limit_s, alone_s=GRACE_S, env=variables, stdout=file, stderr=file)


def answer_in(folder: Path) -> dict | None:
    """What a check's process has left; None where it has not come so far."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads((folder / "answer.json").read_text())
    return None


# --- in words -----------------------------------------------------------------------------------------------------


def sentence(found: dict) -> str:
    """A finding in one line."""
    return f"{found['part']} {found['check']}: {found['outcome']}: {rests_on(found)} ({found['seconds']:.0f} s)"


def rests_on(found: dict) -> str:
    """The reason of a finding, or its figures.

    >>> rests_on({"reason": "", "figures": {"wall s": 1.23456, "gpu": "H100", "remark": None}})
    'wall s 1.235, gpu H100'
    """
    said = {name: value for name, value in found["figures"].items() if value not in (None, "")}
    words = [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in said.items()]
    return "; ".join(filter(None, [found["reason"], ", ".join(words)])) or "yes"


def table(results: list[dict]) -> Grid:
    """Every check of the parts that were asked for, with what came of it."""
    rows = [[found["part"], found["check"], found["outcome"], rests_on(found)] for found in results]
    return Grid([("part", False), ("check", False), ("outcome", False), ("reason or figures", False)], rows)


def counted(results: list[dict]) -> str:
    """How many were proven, failed and not exercised.

    >>> counted([{"outcome": "proven"}, {"outcome": "proven"}, {"outcome": "failed"}])
    '2 proven, 1 failed, 0 not exercised'
    """
    outcomes = [found["outcome"] for found in results]
    return ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in OUTCOMES)


def plan(modules: list[str], findings: Findings | None = None, key: str = "", num_gpus: int = 1) -> list[str]:
    """What these parts would do on so many GPUs, and how long: a line per part, and one per check. findings: those that
    are there."""
    lines, total = [], 0.0
    for module in modules:
        part = part_in(module)
        seconds = part.seconds_on(num_gpus)
        lines.append(f"{part.name} {part.title}: {len(part.checks)} checks, {seconds / 60:.1f} minutes at most")
        total += seconds
        for check in part.checks:
            needs = f" [needs {', '.join(check.needs)}]" if check.needs else ""
            before = findings and findings.of(check, key)
            done = f" ({before['outcome']} before)" if before and before["outcome"] != NOT_EXERCISED else ""
            lines.append(f"  {check.seconds:4.0f} s  {check.name}{done}: {check.question}{needs}")
    where = "a recent GPU" if num_gpus == 1 else f"{num_gpus} recent GPUs"
    return [*lines, f"in all {total / 60:.0f} minutes at most on {where}"]
