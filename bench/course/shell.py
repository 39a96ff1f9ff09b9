"""Commands from a notebook: live output, a time limit, and a failed command fails its cell (unlike `!command`)."""

import contextlib
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from bench.course.ranks import MOST_LINES
from bench.errors import ExitCode, RunFailed, UserError
from bench.files import PROJECT
from bench.process import tree
from bench.studies.registry import STUDIES

# A kernel may have been started without its environment on PATH. (Commands started by commands, as the python of
# `horovodrun python train.py`, are found by PATH: see ``own_paths``.)
PROGRAMS = {"python": "", "torchrun": "torch.distributed.run", "horovodrun": "horovod.runner.launch", "bench": "bench"}
SMALL = f"{Path(__file__).with_name('small_resnet.py')}:small_resnet"  # replaces ResNet-18 in a quick run
COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE")  # set by kernels: a pipe would pass for a terminal


def bench(command: str = "run", timeout: float = 600.0, quiet: bool = False, cluster: dict | None = None, **variables):
    """Run one command with the variables of `make`: ``bench(MODE="ddp", GPUS=2, STEPS=10)``.

    command: "run" or the command of a study, such as "compare". Prints the equivalent `make` line first. Baselines of a
    run only with BASELINES=1. Without OUT its files are deleted after the records are read. cluster: run it in the
    nodes of `make cluster` with these variables: ``cluster={"NODES": 2, "LINK": "100mbit"}``. In a quick run of a
    chapter (COURSE_QUICK=1) a smaller network takes the place of ResNet-18.
    Returns the Record of a run (bench/record/view.py), or the list of suites of another command.

    Raises UserError for an invalid request, RunFailed when the command fails.
    """
    from bench.analysis.suite import suites_of
    from bench.course import QUICK
    from bench.record.read import load

    studies = list(dict.fromkeys(study.command for study in STUDIES.values()))
    if command not in ("run", *studies):
        known = ", ".join(["run", *studies])
        raise UserError(
            f'unknown command {command!r}: choose one of {known}, or run it with course.shell("bench {command}")'
        )
    if small := [name for name in variables if not name.isupper()]:
        raise UserError(f"unknown variable {small[0]}: write {small[0].upper()}, as for make")
    variables = {name: int(value) if isinstance(value, bool) else value for name, value in variables.items()}
    if command == "run":
        variables = {"BASELINES": 0} | variables
    if QUICK and variables.get("MODEL", "resnet18") == "resnet18":
        variables |= {"MODEL": SMALL}
    variables |= {} if cluster else one_kind_of_device(variables)
    line = " ".join(["make", "bench" if command == "run" else command, *make_words(variables)])
    print("$", " ".join(["make cluster", *make_words(cluster), f'CMD="{line}"']) if cluster else line, flush=True)
    with contextlib.ExitStack() as stack:
        temporary = "" if "OUT" in variables else stack.enter_context(tempfile.TemporaryDirectory(prefix="runs-"))
        out = Path(temporary or variables["OUT"])
        before = set(out.rglob("record.json"))
        argv = [*program("bench"), *command.split(), *flags(variables | {"OUT": out})]
        if cluster:
            argv = [*program("bench"), "cluster", *flags(cluster | {"CMD": shlex.join(argv)})]
        execute(argv, timeout, quiet, temporary)
        records = [load(path) for path in out.rglob("record.json") if path not in before]
        return min(records, key=lambda r: r.started_at) if command == "run" else suites_of(records)


def make_words(variables: dict) -> list[str]:
    return [f"{name}={shlex.quote(str(value))}" for name, value in variables.items()]


def flags(variables: dict) -> list[str]:
    return [f"--{name.lower().replace('_', '-')}={value}" for name, value in variables.items()]


def one_kind_of_device(variables: dict) -> dict:
    """DEVICE=cpu if the machine has a GPU but fewer than two devices need: one device on its GPU and two on its CPU
    could not be compared. Empty if the reader chose a device, or there are enough GPUs or none."""
    from bench.measure.nvml import visible_gpus

    if not str(variables.get("GPUS", 1)).isdecimal():
        return {}  # GPUs by name, or something that the command refuses
    wanted = max(2, int(variables.get("GPUS", 1)))
    if "DEVICE" in variables or "SHARE_GPU" in variables or not 0 < len(visible_gpus()) < wanted:
        return {}
    print(f"Fewer than {wanted} GPUs: CPU processes emulate the devices in every run (DEVICE=cpu).")
    return {"DEVICE": "cpu"}


def shell(line: str, timeout: float = 120.0) -> None:
    """Run a command line with live output, no pipes or wildcards: ``shell("torchrun --nproc-per-node 2 train.py")``."""
    print(f"$ {line}", flush=True)
    name, *rest = shlex.split(line)
    execute([*program(name), *rest], timeout)


def program(name: str) -> list[str]:
    """Its command: one of PROGRAMS is a module of this Python, "python" without one."""
    if name not in PROGRAMS:
        return [name]
    return [sys.executable, "-m", PROGRAMS[name]] if PROGRAMS[name] else [sys.executable]


def execute(argv: list[str], timeout: float, quiet: bool = False, hidden: str = "") -> None:
    """Run a command and print its lines as they come, except lines that contain ``hidden``.

    Raises UserError for exit code 2 of bench, RunFailed for other failures. No process of it is left, even when the
    kernel dies.
    """
    if not shutil.which(argv[0]):
        raise RunFailed(f"{argv[0]} cannot be started: no such program")
    environment = {name: value for name, value in os.environ.items() if name not in COLOURS}
    environment |= {**own_paths(), "PYTHONUNBUFFERED": "1", "COLUMNS": "110", "TERM": "dumb"}
    last, lines = "", 0

    def on_line(text: str) -> None:
        nonlocal last, lines
        last, lines = text.strip() or last, lines + 1
        if quiet or (hidden and hidden in text):
            return
        if lines <= MOST_LINES:
            print(text, end="", flush=True)
        elif lines == MOST_LINES + 1:
            print(f"… more than {MOST_LINES} lines: the others are not shown", flush=True)

    code = tree.run(argv, timeout, on_line, alone_s=tree.GRACE_S, env=environment, tied=True)
    if code is None:
        raise RunFailed(f"stopped after {timeout:g} s (timeout=)")
    if code == ExitCode.REFUSED and last.startswith("bench: "):
        raise UserError(last.removeprefix("bench: "))
    if code:
        raise RunFailed(f"the command ended with code {code}: {last or 'it printed nothing'}")


def own_paths() -> dict[str, str]:
    """PATH with this Python's programs first, and PYTHONPATH with the project."""
    places = {
        "PATH": [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)],
        "PYTHONPATH": [str(PROJECT), os.environ.get("PYTHONPATH")],
    }
    return {name: os.pathsep.join(filter(None, folders)) for name, folders in places.items()}
