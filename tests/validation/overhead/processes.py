"""What selfbench runs: the harness, the bare loops, the bare starts, and two commands that must be instant.

A program is a command with variables to add to the environment, and a way to read what it left behind.
"""

import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.config.fields import flag_of
from bench.config.modes import MODES
from bench.config.options import FIELDS, RunConfig
from bench.errors import RunFailed
from bench.files import PROJECT
from bench.launch.command import thread_variables
from bench.measure import steady
from bench.process.ending import signals_as_interrupt
from bench.process.tree import GRACE_S, Tree
from bench.record.read import load


@dataclass(frozen=True)
class Program:
    """One command. ``argv`` holds the word OUT where the run's folder goes; ``read`` gets that folder."""

    argv: list[str]
    variables: dict[str, str]
    read: Callable[[Path], dict]
    global_batch: int = 0
    independent: bool = False
    timeout: float = 900.0


def harness(config: RunConfig) -> Program:
    """The command a person would type."""
    argv = [sys.executable, "-m", "bench", "run", *flags(config), "--out=OUT"]
    independent = MODES[config.mode].baseline
    return Program(argv, {}, read_record, config.global_batch, independent, config.timeout)


def over_nodes(config: RunConfig) -> Program:
    """The same run with every rank on a node of its own: network namespaces, links without a limit."""
    alone = harness(config)
    nodes = ["--nodes", str(config.num_devices), "--cmd", shlex.join(alone.argv)]
    return dataclasses.replace(alone, argv=[sys.executable, "-m", "bench", "cluster", *nodes])


def joined(config: RunConfig) -> Program:
    """The same run in processes that a mode's engine has started, as the bare scripts are."""
    own = dataclasses.replace(config, launcher="auto")
    argv = started(config, ["-m", "bench", "run", *flags(own), "--out=OUT"])
    return Program(argv, threads(config), read_record, config.global_batch, timeout=config.timeout)


def bare(config: RunConfig) -> Program:
    """The bare loop of a mode."""
    script = ["-m", "bench.proof.selfbench.bare", config.mode, json.dumps(changes(config)), "OUT"]
    return Program(started(config, script), threads(config), read_ranks, config.global_batch, timeout=config.timeout)


def paired(config: RunConfig, pairs: int) -> Program:
    """The harness's loop and a bare one in turns, in the same processes."""
    script = ["-m", "bench.proof.selfbench.paired", json.dumps(changes(config)), str(pairs), "OUT"]
    return Program(started(config, script), {"RANK": "0", **threads(config)}, read_blocks, timeout=config.timeout)


def gpu_loop(config: RunConfig, pairs: int) -> Program:
    """The harness's loop on one device and a bare script's in turns, in one process."""
    script = ["-m", "bench.proof.selfbench.gpu_loop", json.dumps(changes(config)), str(pairs), "OUT"]
    return Program([sys.executable, *script], {"RANK": "0", **threads(config)}, read_blocks, timeout=config.timeout)


def messages(config: RunConfig, nbytes: int, pairs: int) -> Program:
    """All-reduces as `bench network` times them and in a bare loop in turns, in the same processes."""
    script = ["-m", "bench.proof.selfbench.messages", json.dumps(changes(config)), str(nbytes), str(pairs), "OUT"]
    return Program(started(config, script), threads(config), read_blocks, timeout=config.timeout)


def batches(images: Path, image_size: int, pairs: int) -> Program:
    """The harness's batches of photographs and those of torchvision's recipe in turns, in the same loader worker."""
    script = ["-m", "bench.proof.selfbench.input_pipeline", str(images), str(image_size), str(pairs), "OUT"]
    return Program([sys.executable, *script], thread_variables(1), read_blocks)


def progress(pairs: int) -> Program:
    """The parts of what lines of progress cost, each timed by itself."""
    return Program([sys.executable, "-m", "bench.proof.selfbench.progress", str(pairs), "OUT"], {}, read_blocks)


def fed(config: RunConfig, rounds: int, batches: int) -> Program:
    """The input pipeline alone, on the config's device."""
    script = ["-m", "bench.proof.selfbench.fed", json.dumps(changes(config)), str(rounds), str(batches), "OUT"]
    return Program([sys.executable, *script], {"RANK": "0", **threads(config)}, read_blocks, timeout=config.timeout)


def join(config: RunConfig) -> Program:
    """The bare start of a mode's engine."""
    argv = started(config, ["-m", "bench.proof.selfbench.join", config.launcher, "OUT"])
    return Program(argv, threads(config), read_ranks, timeout=config.timeout)


def command(*words: str) -> Program:
    """A command of the harness that runs nothing; it is ready when it has ended."""
    return Program([sys.executable, "-m", "bench", *words], {}, lambda out: {"step_time_s": [], "ready": steady.now()})


def started(config: RunConfig, script: list[str]) -> list[str]:
    """A script as a person starts it with the launcher of a resolved config."""
    return [sys.executable, *STARTERS[config.launcher](config.num_devices), *script]


# Launcher -> the words between python and the script, for so many processes.
STARTERS = {
    "in-process": lambda n: [],
    "torchrun": lambda n: ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)],
    "horovodrun": lambda n: ["-m", "horovod.runner.launch", "--gloo", "-np", str(n), sys.executable],
}


def threads(config: RunConfig) -> dict[str, str]:
    """As many CPU threads per process as the harness gives, which wait as long."""
    return thread_variables(config.threads_per_process)


def changes(config: RunConfig) -> dict:
    """The options that differ from their defaults."""
    values = {f.name: (getattr(config, f.name), f.default) for f in FIELDS.values()}
    return {name: value for name, (value, default) in values.items() if value != default and name != "out"}


def flags(config: RunConfig) -> list[str]:
    """The same as words of the command line."""
    given = changes(config)
    fields = [f for f in FIELDS.values() if f.name in given]
    return [f"{flag_of(f)}={int(v) if isinstance(v := given[f.name], bool) else v}" for f in fields]


def read_record(out: Path) -> dict:
    """Step times of all ranks and the moment of the first timed step, from the one record below OUT."""
    (path,) = out.glob("*/record.json")
    parts = load(path).samples
    ready = max(part.moments["first_timed_step"] for part in parts)
    return {"step_time_s": [part.step_time_s for part in parts], "ready": ready}


def read_ranks(out: Path) -> dict:
    """The same from the files of the bare scripts."""
    parts = [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))]
    ready = max((part["ready"] for part in parts if part["ready"]), default=None)
    return {"step_time_s": [part["step_time_s"] for part in parts], "ready": ready}


def read_blocks(out: Path) -> dict:
    """The blocks of all ranks: of each block the slowest rank's time."""
    parts = [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))]
    return {name: [max(block) for block in zip(*(p[name] for p in parts), strict=True)] for name in parts[0]}


def execute(name: str, program: Program, out: Path) -> dict:
    """Run a program once; its sample: ``step_time_s`` [rank][step] and ``ready_s`` after its start, or blocks of a
    paired one. Raises RunFailed."""
    out.mkdir(parents=True)
    argv = [str(out) if word == "OUT" else word.replace("=OUT", f"={out}") for word in program.argv]
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, **steady.variables(), **program.variables}
    with (out / "output.log").open("wb") as log:
        started = steady.now()
        with signals_as_interrupt(), Tree(alone_s=GRACE_S) as tree:
            tree.start(argv, environment, stdout=log, stderr=log)
            code = tree.wait(program.timeout + GRACE_S)
            if code is None:
                raise RunFailed(f"{name}: not finished after {program.timeout:g} s (TIMEOUT)")
            if code != 0:
                last = (out / "output.log").read_text(errors="replace").strip().splitlines()[-1:] or ["nothing printed"]
                raise RunFailed(f"{name}: ended with code {code}: {last[0]}")
            sample = program.read(out)  # now: one of the moments that are read is that of its end
    if "ready" in sample:
        sample["ready_s"] = (ready := sample.pop("ready")) and ready - started
    return sample
