"""What ruff and import-linter cannot check, for `make lint`: `python -m tests.lint` prints a line per violation."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator

import grimp

from bench.cli import ALIASES, COMMANDS, NAMES, RENAMED, all_commands
from bench.config.data_sets import DATA_SETS
from bench.config.modes import MODES
from bench.config.tasks import TASKS
from bench.config.workloads import WORKLOADS
from bench.files import PROJECT
from bench.launch.engines import ENGINES
from bench.measure.environment import source_files
from bench.mistakes import FILES
from bench.studies.registry import FOLDERS

BENCH = PROJECT / "bench"
# A folder without __init__.py is not a package: its scripts are data.
SOURCES = {
    path.relative_to(PROJECT).as_posix(): path
    for path in sorted(BENCH.rglob("*.py"))
    if (path.parent / "__init__.py").exists()
}

# The files that may test which mode it is, and why. Elsewhere ask the mode's own file or bench/config/modes.py.
MAY_TEST_THE_MODE = {
    "bench/__main__.py": "horovod is a package here, which a command needs",
    "bench/course/ranks.py": "horovod is a launcher here",
    "bench/course/start.py": "horovod is a library here",
    "bench/cli/actions/verify.py": "everything is compared with single",
    "bench/studies/breakdown/result.py": "dp is a lane of a timeline here",
    "bench/studies/programs.py": "a mode is not its own baseline",
    "bench/studies/unsynced/result.py": "two programs of one mode are compared, whichever it is",
    "bench/proof/gpu_check/probes.py": "it checks the wrappers themselves",
}
MODE_NAMES = set(MODES) - {"local"}  # this machine and its file system are called that, too

# The packages that may import torch, and the modules in them that may not.
WITH_TORCH = (
    "modes", "workload", "training", "measure", "profile", "observe", "structure", "foreign.rank",
    "tasks.inference.files", "proof.gpu_check.bare_loop", "proof.gpu_check.probes", "predict.emulation.stand_in",
    "predict.memory", "course.small_resnet",
)  # fmt: skip
WITHOUT_TORCH = ("modes", "measure.nccl", "measure.nvml", "measure.environment", "profile.clocks",
                 "profile.horovod_timeline", "training.schedule", "workload.sharding")  # fmt: skip
PLUGINS = ("course.exercises.nbgrader_hooks", "course.exercises.plain")  # only nbgrader and pytest import them


def mode_tests(code: str) -> list[int]:
    """The lines that compare a variable called mode, or anything with a mode's name, or import a mode's file.

    >>> wrong = ["a.mode != b", "label == 'dp'", "kind in ('ddp', 'horovod')", "from bench.modes import ddp"]
    >>> [mode_tests(line) for line in [*wrong, "from bench.modes.fsdp import Mode"]]
    [[1], [1], [1], [1], [1]]
    >>> mode_tests("from bench.modes import load_mode"), mode_tests("MODES[mode].one_process and kind == 'lab'")
    ([], [])
    """
    lines = []
    for node in ast.walk(ast.parse(code)):
        names = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            elements = [each for side in sides for each in getattr(side, "elts", [side])]
            names = [each.value for each in elements if isinstance(each, ast.Constant)]
            called = {getattr(side, "id", getattr(side, "attr", None)) for side in sides}
            if "mode" in called and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
                names += MODE_NAMES
        elif isinstance(node, ast.MatchValue):
            names = [getattr(node.value, "value", None)]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bench.modes"):
            names = [node.module.rpartition(".")[2], *(alias.name for alias in node.names)]
        if MODE_NAMES & {name for name in names if isinstance(name, str)}:
            lines.append(node.lineno)
    return lines


def check_modes() -> Iterator[str]:
    """A mode's file and its line of the table answer what depends on the mode."""
    for name, path in SOURCES.items():
        if not name.startswith("bench/modes/") and name not in MAY_TEST_THE_MODE:
            yield from (f"{name}:{line}: tests which mode it is" for line in mode_tests(path.read_text()))
    for name in MAY_TEST_THE_MODE:
        if name not in SOURCES or not mode_tests(SOURCES[name].read_text()):
            yield f"{name}: does not test which mode it is: remove it from MAY_TEST_THE_MODE"


def module_of(name: str) -> str:
    """bench/modes/__init__.py -> bench.modes"""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def check_torch() -> Iterator[str]:
    """Commands start without torch."""
    heavy, light = (tuple(f"bench.{name}" for name in names) for names in ((*WITH_TORCH, *PLUGINS), WITHOUT_TORCH))
    modules = {each for each in map(module_of, SOURCES) if each in light or not each.startswith(heavy)}
    yield from (f"tests/lint.py: there is no module {name}" for name in set(light) - modules)
    code = f"import sys, {', '.join(sorted(modules))}; print(*{{'torch', 'torchvision', 'horovod'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    if done.returncode or done.stdout.strip():
        yield f"a module outside of WITH_TORCH imports {done.stdout.strip() or done.stderr[-500:]}"


def check_source_hash() -> Iterator[str]:
    """``source_hash`` covers every module that ranks and launchers import."""
    covered = {module_of(path.relative_to(PROJECT).as_posix()) for path in source_files()}
    due = {"bench.worker", "bench.foreign.rank", *(task.module for task in TASKS.values())}
    due |= {module_of(name) for name in SOURCES if name.split("/")[1] in ("launch", "modes", "workload")}
    due |= {f"bench.mistakes.{name}" for name in FILES}
    graph, reached = grimp.build_graph("bench", cache_dir=None), set()
    while new := due - reached:
        reached |= new
        due = set().union(*map(graph.find_modules_directly_imported_by, new))
        due |= {each.rpartition(".")[0] for each in reached if "." in each}  # the packages above them
    if len(reached) < 200:
        yield f"check_source_hash: only {len(reached)} modules found"
    reached |= {"bench.cli.actions.joined", "bench.cli.actions.joined_rank"}
    yield from (f"{module}: a rank imports it, and source_files() leaves it out" for module in reached - covered)


def check_tables() -> Iterator[str]:
    """Every file that a table should name is named, and every name has its file."""

    def files(folder: str, without: str) -> set[str]:
        names = {
            path.stem for path in (BENCH / folder).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
        }
        return {name for name in names if not name.startswith("__")} - set(without.split())

    for folder, without, named in (
        ("modes", "base collectives sync_batch_norm", MODES),
        ("mistakes", "base measures scripts", FILES),
        ("cli", "actions base", NAMES),
        ("studies", "base programs registry rounds", FOLDERS),
        ("launch/engines", "horovod_elastic horovod_ranks spawn_ranks", [name.replace("-", "_") for name in ENGINES]),
    ):
        for name in files(folder, without) ^ set(named):
            yield f"bench/{folder}: {name} is a file without a line in its table, or a line without a file"
    for name in set(WORKLOADS) - files("workload", ""):
        yield f"bench/workload: no file of {name}"
    for name, info in DATA_SETS.items():
        if info.workload not in WORKLOADS or info.module not in {"", *files(f"workload/{info.workload}", "")}:
            yield f"bench/config/data_sets.py: {name}: no file bench/workload/{info.workload}/{info.module}.py"


def check_targets() -> Iterator[str]:
    """make lists the commands before any package is installed."""
    words = [sys.executable, "-S", "-m", "bench", "help", "--targets"]
    done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True)
    parts = {part.name.replace(" ", "/") for part in all_commands() if " " in part.name}
    listed = {word.removesuffix("+course") for word in done.stdout.split()}
    if listed != {*COMMANDS, *ALIASES, *RENAMED, *parts}:
        yield f"bench help --targets, with the standard library alone, lists {sorted(listed)}: {done.stderr[-500:]}"


def check_contributing() -> Iterator[str]:
    """CONTRIBUTING.md: its two walks through the code and its table of layers agree with the code."""
    text = (PROJECT / "CONTRIBUTING.md").read_text()
    for title in re.findall(r"^### (.*)", text, re.MULTILINE):
        section = re.split(r"\n##", text.partition(f"### {title}")[2])[0]
        steps = re.findall(r"^\d+\. \[`[\w./]+`\]\(([\w./]+)\)(?: `(\w+)`)?", section, re.MULTILINE)
        if len(steps) != len(re.findall(r"^\d+\. ", section, re.MULTILINE)):
            yield f"CONTRIBUTING.md: {title}: a step without the link of its file"
        for file, name in steps:
            source = (PROJECT / file).read_text() if (PROJECT / file).is_file() else None
            if source is None or (name and not re.search(rf"^(?:def|class) {name}\b", source, re.MULTILINE)):
                yield f"CONTRIBUTING.md: {title}: {file} {name} does not exist"
        paths = {PROJECT / file for file in re.findall(r"(?:bench/[\w/]+\.py|Makefile)", section)}
        sources = "\n".join(path.read_text() for path in paths if path.is_file())
        for name in re.findall(r"`(\w+)`", section):
            if not re.search(rf"\b{name}\b", sources):
                yield f"CONTRIBUTING.md: {title}: none of its files has {name}"
    (layers,) = re.findall(r"^layers = \[(.*?)^\]", (PROJECT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    above = [set(re.findall(r"\w+", line)) for line in layers.strip().splitlines()]
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", text.partition("## The layout")[2], re.MULTILINE)
    named = [set(re.findall(r"`(\w+)`", row)) for _, row in rows]
    if len(above) != len(named) or not all(layer <= names for layer, names in zip(above, named, strict=True)):
        yield "CONTRIBUTING.md: the table of layers is not that of pyproject.toml"


CHECKS = (check_modes, check_torch, check_source_hash, check_tables, check_targets, check_contributing)

if __name__ == "__main__":
    violations = [each for check in CHECKS for each in sorted(check())]
    print("\n".join(violations) or f"{len(CHECKS)} checks of this project: all kept")
    sys.exit(bool(violations))
