"""Who may import whom and what no import may bring along; and that nobody asks which mode it is."""

import ast
import shutil
import subprocess
import sys

import pytest

from bench.cli import ALIASES, COMMANDS, RENAMED, every
from bench.config.modes import MODES
from bench.config.tasks import TASKS
from bench.measure.environment import source_files
from tests.runs import ROOT

BENCH = ROOT / "bench"
FILES = sorted(BENCH.rglob("*.py"))

# Who may ask which mode it is, and why. Elsewhere a mode's own file, or the table in bench/config/modes.py, answers.
MAY_ASK = {
    "bench/__main__.py": "horovod is a package here, which a command needs",
    "bench/course/ranks.py": "horovod is a launcher here",
    "bench/course/start.py": "horovod is a library here",
    "bench/cli/actions/verify.py": "everything is compared with single",
    "bench/studies/breakdown/result.py": "dp is a lane of a timeline here",
    "bench/studies/programs.py": "a mode is not its own baseline",
    "bench/studies/unsynced/result.py": "two programs of one mode are compared, whichever it is",
    "bench/proof/gpu_check/probes.py": "it checks the wrappers themselves",
}
MODE_NAMES = set(MODES) - {"local"}  # this machine, and its file system, are called so as well

# What a machine without torch can load: all but what lives in the worker.
HEAVY_ROOMS = ["bench.modes", "bench.workload", "bench.training", "bench.measure", "bench.observe",
               "bench.foreign.rank",
               "bench.tasks.inference.files", "bench.proof.gpu_check.bare_loop",
               "bench.proof.gpu_check.probes", "bench.predict.emulation.stand_in", "bench.predict.memory",
               "bench.structure"]  # fmt: skip
LIGHT_EXCEPTIONS = [
    "bench.modes.__init__",
    "bench.measure.nccl",
    "bench.measure.nvml",
    "bench.measure.environment",
    "bench.profile.horovod_timeline",
    "bench.training.schedule",
    "bench.workload.sharding",
]
NO_MODULE = [
    "bench.course.exercises.nbgrader_hooks",  # a part of nbgrader
    "bench.course.exercises.plain",  # a part of pytest
]


def name_of(path) -> str:
    """bench/launch/launcher.py -> bench.launch.launcher; a folder's own file keeps its __init__."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


NAMES = {name_of(path) for path in FILES}


def within(name: str, rooms) -> bool:
    """Whether a file is one of the rooms or lies below one."""
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def run_python(*arguments, folder=ROOT) -> subprocess.CompletedProcess:
    """A fresh Python, from start to end."""
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)


# --- Who may import whom --------------------------------------------------------------------------------------------

LINT = "from importlinter.cli import lint_imports_command as lint; lint()"  # as `make lint` does


def test_the_contract_of_floors_is_kept():
    result = run_python("-c", LINT, "--no-cache")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("config/options.py", "from bench.cli import base", "floors BROKEN"),
        ("modes/base.py", "from bench.workload import loader", "floors BROKEN"),  # beside it
        ("formulas.py", "def late(): from bench import worker", "floors BROKEN"),  # within a function, too
        ("mistakes/base.py", "import bench.config.modes", "floors BROKEN"),
        ("config/fields.py", "from bench.config import options", "no circles BROKEN"),
        ("newcomer.py", "", "bench.newcomer"),  # a room that stands on no floor
    ],
)
def test_an_import_that_is_forbidden_is_found(tmp_path, file, line, said):
    """The real contract, on a copy that breaks it."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(BENCH, tmp_path / "bench", ignore=shutil.ignore_patterns("__pycache__", "*.lock"))
    path = tmp_path / "bench" / file
    path.write_text(f"{path.read_text() if path.exists() else ''}\n{line}\n")
    result = run_python("-c", LINT, "--no-cache", folder=tmp_path)
    assert result.returncode != 0 and said in result.stdout, result.stdout


def imported_by(name: str) -> set[str]:
    """The files of bench that a file imports, within functions too, with the packages above them."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / f"{name.replace('.', '/')}.py").read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    found |= {each.rpartition(".")[0] for each in found}
    return NAMES & (found | {f"{each}.__init__" for each in found})


def test_the_hash_of_the_code_covers_what_ranks_and_launchers_import():
    covered = {name_of(path) for path in source_files()}
    reached, due = set(), {"bench.worker", *(task.module for task in TASKS.values()), "bench.foreign.rank"}
    due |= {name for name in NAMES if within(name, ["bench.launch", "bench.modes", "bench.workload", "bench.mistakes"])}
    while new := due - reached:
        reached |= new
        due = set().union(*map(imported_by, new))
    assert len(reached) > 200 and reached <= covered
    assert {"bench.cli.actions.joined", "bench.cli.actions.joined_rank"} <= covered
    assert not {"bench.course.site", "bench.report.page", "bench.cli.help"} & covered


# --- What an import brings along ------------------------------------------------------------------------------------


def test_only_the_worker_loads_torch():
    """One fresh process imports everything that stands outside the worker, and the worker's own head."""
    light = [n for n in NAMES if not within(n, [*HEAVY_ROOMS, *NO_MODULE]) or n in LIGHT_EXCEPTIONS]
    assert set(LIGHT_EXCEPTIONS) <= NAMES and set(NO_MODULE) <= NAMES
    modules = ", ".join(sorted(name.removesuffix(".__init__") for name in light))
    code = f"import sys, {modules}; print([m for m in ('torch', 'torchvision', 'horovod') if m in sys.modules])"
    result = run_python("-c", code)
    assert (result.returncode, result.stdout.strip()) == (0, "[]"), result.stderr


def test_the_commands_are_listed_with_the_standard_library_alone():
    """make asks for them before anything is installed."""
    result = run_python("-S", "-m", "bench", "help", "--targets")
    assert result.returncode == 0, result.stderr
    targets = result.stdout.split()
    assert {target.removesuffix("+course") for target in targets} == {
        *COMMANDS, *ALIASES, *RENAMED, *(part.name.replace(" ", "/") for part in every() if " " in part.name)
    }  # fmt: skip
    assert {"notebooks+course", "site/slides+course", "slides+course", "mistake/demo", "lab"} <= set(targets)


# --- Nobody asks which mode it is -----------------------------------------------------------------------------------


def asks_for_a_mode(code: str) -> list[int]:
    """The lines that compare something called mode, compare anything with the name of a mode, or import a mode's file,
    as one needs to ask for its wrapper."""
    lines = []
    for node in ast.walk(ast.parse(code)):
        names = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            names = [each.value for side in sides for each in getattr(side, "elts", [side])
                     if isinstance(each, ast.Constant)]  # fmt: skip
            if any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
                called = {getattr(side, "id", getattr(side, "attr", None)) for side in sides}
                names += MODE_NAMES if "mode" in called else []
        elif isinstance(node, ast.MatchValue):
            names = [getattr(node.value, "value", None)]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bench.modes"):
            names = [node.module.rpartition(".")[2], *(alias.name for alias in node.names)]
        if MODE_NAMES & {name for name in names if isinstance(name, str)}:
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    "code",
    ["config.mode == x", "a.mode != b.mode", "if label == 'dp': pass", "kind in ('ddp', 'horovod')",
     "match kind:\n  case 'single': pass", "from bench.modes.fsdp import Mode", "from bench.modes import ddp"],
)  # fmt: skip
def test_an_asking_is_found(code):
    right = "from bench.modes import load_mode\nneeds(mode) and MODES[mode].one_process and kind == 'lab'"
    assert asks_for_a_mode(code) and not asks_for_a_mode(right)


def test_nobody_asks_which_mode_it_is():
    """What a mode that is new can then do is in test_extensions.py."""
    asking = {str(path.relative_to(ROOT)) for path in FILES if asks_for_a_mode(path.read_text())}
    assert {name for name in asking if not name.startswith("bench/modes/")} == set(MAY_ASK)
