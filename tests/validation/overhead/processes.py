"""What is measured, as programs: the harness, bare scripts, and both in turns."""

import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.config.combined import is_part
from bench.config.command_line import given_words
from bench.config.fields import flag_of
from bench.config.options import FIELDS, RunConfig
from bench.errors import RunFailed
from bench.files import PROJECT
from bench.launch.command import thread_variables
from bench.measure import steady
from bench.process.ending import signals_as_interrupt
from bench.process.tree import GRACE_S, Tree
from bench.record.read import load

HERE = "tests.validation.overhead"
LIMIT_S = 900.0
# Launcher -> the words between python and the script, for a number of processes.
STARTERS = {
    "in-process": lambda n: [],
    "torchrun": lambda n: ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)],
    "horovodrun": lambda n: ["-m", "horovod.runner.launch", "--gloo", "-np", str(n), sys.executable],
}


@dataclass(frozen=True)
class Program:
    """One command. ``argv`` holds the word OUT where its folder goes; ``read`` gets that folder."""

    argv: list[str]
    read: Callable[[Path], dict]
    variables: dict[str, str] = dataclasses.field(default_factory=dict)


def harness(config: RunConfig) -> Program:
    """The command a person would type."""
    return Program([sys.executable, "-m", "bench", "run", *flags(config), "--out=OUT"], read_record)


def over_nodes(config: RunConfig) -> Program:
    """The same run with every rank on a separate node: network namespaces, links without a limit."""
    nodes = ["--nodes", str(config.num_devices), "--cmd", shlex.join(harness(config).argv)]
    return Program([sys.executable, "-m", "bench", "cluster", *nodes], read_record)


def joined(config: RunConfig) -> Program:
    """The same run in processes that a mode's engine has started, as the bare scripts are."""
    own = dataclasses.replace(config, launcher="auto")
    return started(config, ["-m", "bench", "run", *flags(own), "--out=OUT"], read_record)


def bare(config: RunConfig, until: str) -> Program:
    """The bare script of a mode, until "join" or "step"."""
    return started(config, ["-m", f"{HERE}.bare", until, config.mode, json.dumps(changes(config)), "OUT"], read_ready)


def paired(kind: str, config: RunConfig, pairs: int, *more) -> Program:
    """The harness and a bare loop in turns, in the same processes."""
    words = [kind, json.dumps(changes(config)), str(pairs), "OUT", *map(str, more)]
    return started(config, ["-m", f"{HERE}.paired", *words], read_blocks, RANK="0")


def batches(images: Path, image_size: int, pairs: int) -> Program:
    """The harness's batches of photographs and those of torchvision's recipe in turns, in the same loader worker."""
    words = [str(images), str(image_size), str(pairs), "OUT"]
    return Program([sys.executable, "-m", f"{HERE}.input_pipeline", *words], read_blocks, thread_variables(1))


def command(*words: str) -> Program:
    """A command of the harness that runs nothing; it is ready when it has ended."""
    return Program([sys.executable, "-m", "bench", *words], lambda out: {"ready": steady.now()})


def started(config: RunConfig, script: list[str], read: Callable[[Path], dict], **variables: str) -> Program:
    """A script as a person starts it with the launcher of a resolved config, with the harness's number of threads."""
    argv = [sys.executable, *STARTERS[config.launcher](config.num_devices), *script]
    return Program(argv, read, thread_variables(config.threads_per_process) | variables)


def changes(config: RunConfig) -> dict:
    """The options that differ from their defaults."""
    values = {f.name: (getattr(config, f.name), f.default) for f in FIELDS.values()}
    return {name: value for name, (value, default) in values.items() if value != default and name != "out"}


def flags(config: RunConfig) -> list[str]:
    """The same as words of the command line."""
    fields = [f for f in FIELDS.values() if f.name != "out" and not is_part(f)]
    pairs = [(f, words.partition("=")[2]) for f in fields if (words := given_words(config, f))]
    return [f"{flag_of(f)}={text}" for f, text in pairs]


def read_record(out: Path) -> dict:
    """Step times of all ranks and the moment of the first timed step, from the one record below OUT."""
    (path,) = out.glob("*/record.json")
    parts = load(path).samples
    ready = max(part.moments["first_timed_step"] for part in parts)
    return {"step_time_s": [part.step_time_s for part in parts], "ready": ready}


def read_ready(out: Path) -> dict:
    """When the last rank of a bare script was ready."""
    return {"ready": max(json.loads(path.read_text())["ready"] for path in out.glob("rank*.json"))}


def read_blocks(out: Path) -> dict:
    """The blocks of all ranks: of each block the slowest rank's time."""
    parts = [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))]
    return {name: [max(block) for block in zip(*(part[name] for part in parts), strict=True)] for name in parts[0]}


def execute(name: str, program: Program, out: Path) -> dict:
    """Run a program once; what it has read, with ``ready_s`` after its start instead of ``ready``. Raises
    RunFailed."""
    out.mkdir(parents=True)
    argv = [str(out) if word == "OUT" else word.replace("=OUT", f"={out}") for word in program.argv]
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, **steady.variables(), **program.variables}
    with (out / "output.log").open("wb") as log:
        began = steady.now()
        with signals_as_interrupt(), Tree(alone_s=GRACE_S) as tree:
            tree.start(argv, environment, stdout=log, stderr=log)
            code = tree.wait(LIMIT_S + GRACE_S)
            if code is None:
                raise RunFailed(f"{name}: not finished after {LIMIT_S:g} s")
            if code != 0:
                last = (out / "output.log").read_text(errors="replace").strip().splitlines()[-1:]
                raise RunFailed(f"{name}: ended with code {code}: {(last or ['it printed nothing'])[0]}")
            sample = program.read(out)  # now: one of the moments that are read is that of its end
    return sample | ({"ready_s": sample.pop("ready") - began} if "ready" in sample else {})
