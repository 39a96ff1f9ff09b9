"""What no import may bring along: torch outside the worker; and that nobody asks which mode it is."""

import ast
import subprocess
import sys

import pytest

from tests.runs import ROOT

BENCH = ROOT / "bench"
FILES = sorted(p for p in BENCH.rglob("*.py"))

# Who may ask which mode it is, and why. Everywhere else a mode's own file, or the table in bench/modes, answers.
MAY_ASK = {
    "bench/config/options.py": "single is one device",
    "bench/studies/programs.py": "single takes the whole batch on its one device",
    "bench/commands/verify.py": "everything is compared with single",
    "bench/commands/gpu_check.py": "device 0 is the fullest under dp",
}

# What a machine without torch can load: all but what lives in the worker.
HEAVY_ROOMS = ["bench.modes", "bench.workload", "bench.training", "bench.measure", "bench.selfbench", "bench.observe"]
LIGHT_EXCEPTIONS = [
    "bench.modes.__init__",
    "bench.measure.nvml",
    "bench.measure.environment",
    "bench.training.schedule",
]
NO_MODULE = [
    "bench.__main__",  # it runs the command when it is imported
    "bench.course.exercises.nbgrader_execution",  # a part of nbgrader
    "bench.course.exercises.plain",  # a part of pytest
]


def name_of(path) -> str:
    """bench/launch/launcher.py -> bench.launch.launcher; a folder's own file keeps its __init__."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


NAMES = {name_of(path) for path in FILES}


def within(name: str, rooms) -> bool:
    """Whether a file is one of the rooms or lies below one."""
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def test_only_the_worker_loads_torch():
    """One fresh process imports everything that stands outside the worker, and the worker's own head."""
    light = [n for n in NAMES if not within(n, [*HEAVY_ROOMS, *NO_MODULE]) or n in LIGHT_EXCEPTIONS]
    modules = ", ".join(sorted(name.removesuffix(".__init__") for name in light))
    code = f"import sys, {modules}; print([m for m in ('torch', 'torchvision', 'horovod') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout.strip()) == (0, "[]"), result.stderr


def asks_for_a_mode(path) -> list[int]:
    """The lines of a file that compare something called mode, or any value with the name of one."""
    from bench.config.modes import MODES

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
