"""Data runs one way through the house: config, launch, worker, record, report. These tests read the imports."""

import ast
import subprocess
import sys

import pytest

from tests.runs import ROOT

BENCH = ROOT / "bench"
FILES = sorted(p for p in BENCH.rglob("*.py"))

# What a room may import of the house, at the top of a file or inside a function. A name stands for all below it.
ALLOWED = {
    "bench.errors": [],
    "bench.files": [],
    "bench.formulas": [],
    "bench.schedule": [],
    "bench.mistakes": [],
    "bench.detect": ["bench.mistakes", "bench.modes.__init__", "bench.schedule"],
    "bench.modes.__init__": [],
    "bench.checks": ["bench.errors", "bench.modes.__init__"],
    "bench.config": [
        "bench.checks", "bench.errors", "bench.mistakes", "bench.modes.__init__", "bench.schedule",
    ],
    "bench.labs": [
        "bench.labs", "bench.checkpoint", "bench.config", "bench.detect", "bench.errors", "bench.formulas",
        "bench.mistakes", "bench.modes.group",
        "bench.workload",
    ],
    "bench.suites": ["bench.config", "bench.errors", "bench.modes.__init__"],
    "bench.progress": [],
    "bench.guard": ["bench.errors"],
    "bench.remote": ["bench.errors", "bench.files"],
    "bench.storage": ["bench.errors", "bench.files", "bench.remote"],
    "bench.record": [
        "bench.checks", "bench.config", "bench.errors", "bench.files", "bench.formulas", "bench.mistakes",
        "bench.modes.__init__", "bench.remote",
    ],
    "bench.measure": ["bench.measure", "bench.config", "bench.errors", "bench.formulas"],
    "bench.launch": [
        "bench.launch", "bench.config", "bench.errors", "bench.guard", "bench.progress", "bench.record",
        "bench.measure.nvml", "bench.measure.environment", "bench.modes.__init__",
    ],
    "bench.modes": ["bench.modes", "bench.config", "bench.errors"],
    "bench.checkpoint": ["bench.errors", "bench.files"],
    "bench.workload": [
        "bench.workload", "bench.checks", "bench.checkpoint", "bench.config", "bench.errors", "bench.files",
        "bench.storage",
    ],
    "bench.train": [
        "bench.checks", "bench.config", "bench.errors", "bench.measure.clock", "bench.progress", "bench.schedule",
    ],
    "bench.epochs": [
        "bench.checkpoint", "bench.config", "bench.errors", "bench.labs", "bench.record", "bench.train",
        "bench.workload.data", "bench.workload.models", "bench.workload.sharding",
    ],
    "bench.worker": [
        "bench.checkpoint", "bench.config", "bench.epochs", "bench.guard", "bench.labs", "bench.measure", "bench.modes",
        "bench.progress", "bench.record", "bench.trackers", "bench.train", "bench.workload",
    ],
    "bench.trackers": ["bench.errors"],
    "bench.live": ["bench.config"],
    "bench.report": [
        "bench.report", "bench.checks", "bench.config", "bench.errors", "bench.files", "bench.formulas",
        "bench.record", "bench.modes.__init__", "bench.detect", "bench.mistakes",
    ],
    "bench.course": [
        "bench.course", "bench.errors", "bench.files", "bench.guard", "bench.launch", "bench.measure.environment",
        "bench.measure.nvml",
        "bench.mistakes", "bench.progress", "bench.record", "bench.report",
    ],
    "bench.install": ["bench.install", "bench.errors", "bench.files"],
}  # fmt: skip

# Who may ask which mode it is, and why. Everywhere else a mode's own file, or the table in bench/modes, answers.
MAY_ASK = {
    "bench/config.py": "single is one device",
    "bench/suites.py": "single takes the whole batch on its one device",
    "bench/verify.py": "everything is compared with single",
    "bench/gpu_check.py": "device 0 is the fullest under dp",
}

# What a machine without torch can load: all but what lives in the worker.
HEAVY_ROOMS = [
    "bench.modes",
    "bench.workload",
    "bench.checkpoint",
    "bench.train",
    "bench.epochs",
    "bench.measure",
    "bench.selfbench",
    "bench.labs",
]
LIGHT_EXCEPTIONS = ["bench.modes.__init__", "bench.measure.nvml", "bench.measure.environment"]
NO_MODULE = [
    "bench.__main__",  # it runs the command when it is imported
    "bench.course.exercises.execution",  # a part of nbgrader
    "bench.course.exercises.plain",  # a part of pytest
]


def name_of(path) -> str:
    """bench/launch/run.py -> bench.launch.run; a folder's own file keeps its __init__."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


NAMES = {name_of(path) for path in FILES}


def module(name: str) -> str | None:
    """The file of the house that an imported name stands for; None for anything else."""
    for candidate in (name, f"{name}.__init__", name.rpartition(".")[0], f"{name.rpartition('.')[0]}.__init__"):
        if candidate in NAMES:
            return candidate
    return None


def imports(path) -> set[str]:
    """The files of the house that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {module(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {module(f"{node.module}.{alias.name}") for alias in node.names}
    return found - {None, "bench.__init__"}


def within(name: str, rooms) -> bool:
    """Whether a file is one of the rooms or lies below one."""
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def room_of(name: str) -> str | None:
    """The most particular room that has a rule for a file."""
    rooms = [room for room in ALLOWED if within(name, [room])]
    return max(rooms, key=len, default=None)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_only_what_lies_behind_it(path):
    name = name_of(path)
    room = room_of(name)
    if room is None:  # the commands stand outside and use everything
        return
    wrong = sorted(i for i in imports(path) if not within(i, [*ALLOWED[room], name]))
    assert not wrong, f"{name} ({room}) must not import {', '.join(wrong)}"


@pytest.mark.parametrize("room", ALLOWED)
def test_every_room_with_a_rule_exists(room):
    assert any(within(name, [room]) for name in NAMES)


def test_the_boundary_is_never_crossed_by_an_import():
    """launch never imports what runs in the worker; the worker never imports launch, report or commands."""
    inside = ["bench.worker", "bench.train", "bench.workload", "bench.checkpoint"]
    inside += ["bench.measure.clock", "bench.measure.memory"]
    inside += [n for n in NAMES if n.startswith("bench.modes.") and n != "bench.modes.__init__"]
    outside = [
        "bench.launch",
        "bench.report",
        "bench.cli",
        "bench.live",
        "bench.verify",
        "bench.doctor",
        "bench.suites",
        "bench.rounds",
        "bench.experiments",
    ]
    for path in FILES:
        name = name_of(path)
        if within(name, outside):
            assert not {i for i in imports(path) if within(i, inside)}, name
        if within(name, inside):
            assert not {i for i in imports(path) if within(i, outside)}, name


def test_only_the_worker_loads_torch():
    """One fresh process imports everything that stands outside the worker, and the worker's own head."""
    light = [n for n in NAMES if not within(n, [*HEAVY_ROOMS, *NO_MODULE]) or n in LIGHT_EXCEPTIONS]
    modules = ", ".join(sorted(name.removesuffix(".__init__") for name in light))
    code = f"import sys, {modules}; print([m for m in ('torch', 'torchvision', 'horovod') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout.strip()) == (0, "[]"), result.stderr


def asks_for_a_mode(path) -> list[int]:
    """The lines of a file that compare something called mode, or any value with the name of one."""
    from bench.modes import MODES

    lines = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            called = {getattr(side, "id", getattr(side, "attr", None)) for side in sides}
            listed = [element for side in sides for element in getattr(side, "elts", [side])]
            constants = {element.value for element in listed if isinstance(element, ast.Constant)}
            equals = any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops)
            if (equals and "mode" in called) or constants & set(MODES):
                lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nobody_asks_which_mode_it_is(path):
    relative = str(path.relative_to(ROOT))
    if relative.startswith("bench/modes/") or relative in MAY_ASK:
        return
    assert not asks_for_a_mode(path), f"{relative} asks for a mode: put the answer into bench/modes"
