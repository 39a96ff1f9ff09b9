"""What the harness itself costs on this machine, against bare scripts that do the same work: run it on an idle one.

    python -m tests.validation.overhead [loop startup hosts network input] [--rounds 8] [--to results/reference/MACHINE]

Parts, all of them unless some are named:

- loop: each mode's loop and a bare loop in turns, in the same processes;
- startup: from the command to the first timed step, against the same engine starting a script that only joins the
  group, and against a bare script's first step, also where `bench run` joins the engine as that script does; and the
  commands that must be instant;
- hosts: ddp and horovod with every rank on a separate node, network namespaces of this machine with links that are
  not limited, against the same ranks on one host;
- network: all-reduces as `bench network` times them against a bare loop of them, in turns, in the same processes;
- input: batches of photographs from JPEG files against torchvision's plain recipe, in turns, in one loader worker.

A row is a ratio with Student's 95 % interval over blocks that took turns, or over rounds, in which every program of
startup and hosts runs once, in an order that is rotated and reversed. Throughput is taken at the median step: on a
shared machine one disturbed step moves the mean of a short run by more than the one percent that is asked about. What
the loop costs on a GPU `bench doctor gpu --part A2` measures.
"""

import argparse
import dataclasses
import datetime
import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path

from bench import formulas
from bench.analysis import stats, tables
from bench.analysis.tables import Grid
from bench.cluster.make import isolate
from bench.config.modes import COMPARED, MODES
from bench.config.options import RunConfig
from bench.errors import BenchError, UserError
from bench.launch.launcher import resolve_here
from bench.measure.environment import collect_machine, cores_in_words
from bench.measure.load import Load, others_share
from bench.record.disturbance import LABEL, above, in_words
from bench.studies.rounds import order
from bench.tasks.network.plan import in_bytes
from tests.validation.overhead import processes as progs
from tests.validation.overhead.input_pipeline import write_photographs

STEPS, WARMUP = 14, 2  # of hosts; some seconds each on two cores
PAIRS, BLOCK = 24, 4  # blocks of each kind; of loop: steps per block
MESSAGE_PAIRS = 480  # of network: blocks of 50 ms, of which 24 gave an interval of 30 %
MESSAGES = (2**16, 2**22)  # bytes
PIXELS = (224, 64)
INSTANT_S = 0.2


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.validation.overhead", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} [all]")
    parser.add_argument("--rounds", type=int, default=8, help="of startup and hosts [8]")
    parser.add_argument("--gpus", type=int, default=2, help="ranks [2]")
    parser.add_argument("--model", default=RunConfig().model)
    parser.add_argument("--to", type=Path, default=Path("results/runs"), help="folder of the file [results/runs]")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"{unknown.pop()}: no part; choose of {', '.join(PARTS)}")
    base = RunConfig(num_devices=asked.gpus, model=asked.model, device="cpu", baselines=False)
    try:
        return measure(base, asked.parts or list(PARTS), asked.rounds, asked.to)
    except BenchError as error:
        print(f"overhead: {error}", file=sys.stderr)
        return error.exit_code


def measure(base: RunConfig, parts: list[str], rounds: int, to: Path) -> int:
    """Measure the parts, print the table, write the file; 0 whatever the verdicts. Raises UserError and RunFailed."""
    to.mkdir(parents=True, exist_ok=True)
    console, began, load, samples = tables.terminal(), datetime.datetime.now().astimezone(), Load(), {}
    with tempfile.TemporaryDirectory(prefix="bench-overhead-") as folder:
        lines = [line for part in parts for line in PARTS[part](base, rounds, Path(folder, part), samples)]
    disturbance = withhold(lines, load.stop())
    machine = collect_machine()
    facts, versions = machine["machine"], machine["versions"]
    said = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "horovod") if versions.get(name))
    console.print(f"{facts['cpu_model']}, {cores_in_words(facts['usable_cores'])}; {said}", highlight=False)
    tables.print_grid(console, grid(lines))
    if disturbance:
        console.print(f"{LABEL}: {in_words(disturbance)}: no verdict", highlight=False)
    path = to / f"overhead-{began:%Y%m%d-%H%M%S}.json"
    report = {"started_at": began.isoformat(timespec="seconds"), "rounds": rounds, "environment": machine,
              "disturbance": disturbance, "rows": lines, "samples": samples}  # fmt: skip
    path.write_text(json.dumps(report, indent=1))
    print(f"written: {path}", flush=True)
    return 0


# --- the parts: each gives its lines, and puts what was measured into samples ---------------------------------------


def loop(base: RunConfig, rounds: int, folder: Path, samples: dict) -> list[dict]:
    """Training steps of each mode that is compared."""
    base, lines = dataclasses.replace(base, warmup_steps=WARMUP, timed_steps=BLOCK), []
    for mode in filter(here, COMPARED):
        program = progs.paired("loop", in_mode(base, mode), PAIRS)
        samples[f"{mode} loop"] = blocks = progs.execute(mode, program, folder / mode)
        name = f"{mode} loop / bare loop, same process"
        lines.append(line("loop", name, blocks["harness_s"], blocks["bare_s"], 0.99))
    return lines


def startup(base: RunConfig, rounds: int, folder: Path, samples: dict) -> list[dict]:
    """Seconds until the first step, in fresh processes."""
    programs = {
        "bench --help": progs.command("--help"),
        "bench report": progs.command("report", str(folder / "uncounted")),
    }
    for mode in several():
        config = in_mode(dataclasses.replace(base, warmup_steps=0, timed_steps=1), mode)
        programs |= {f"{mode} start": progs.harness(config), f"joined {mode} start": progs.joined(config),
                     f"bare {mode} join": progs.bare(config, "join"),
                     f"bare {mode} first step": progs.bare(config, "step")}  # fmt: skip
    for mode in several():  # the first start reads everything from disk
        progs.execute(f"{mode} start", programs[f"{mode} start"], folder / "uncounted" / mode)
    found = in_rounds(programs, rounds, folder)
    samples |= found
    ready = {name: [sample["ready_s"] for sample in each] for name, each in found.items()}

    def row(name: str, program: str, against: list[float], target: float | None) -> dict:
        return line("startup", name, against, ready[program], target, at_most=True)

    lines = []
    for mode in several():
        join, first = ready[f"bare {mode} join"], ready[f"bare {mode} first step"]
        lines += [row(f"{mode} / bare join", f"{mode} start", join, 1.25),
                  row(f"{mode} / bare first step", f"{mode} start", first, None),
                  row(f"joined {mode} / bare first step", f"joined {mode} start", first, 1.1)]  # fmt: skip
    instant = [INSTANT_S] * rounds
    return lines + [row(f"{name} / {INSTANT_S} s", name, instant, 1.0) for name in ("bench --help", "bench report")]


def hosts(base: RunConfig, rounds: int, folder: Path, samples: dict) -> list[dict]:
    """The same ranks over nodes and on one host; no line where there can be no such nodes."""
    try:
        isolate()
    except UserError as error:
        print(f"left out: hosts: {error}", flush=True)
        return []
    base = dataclasses.replace(base, warmup_steps=WARMUP, timed_steps=STEPS)
    configs = {mode: in_mode(base, mode) for mode in several()}
    programs = {mode: progs.harness(config) for mode, config in configs.items()}
    programs |= {f"{mode} over nodes": progs.over_nodes(config) for mode, config in configs.items()}
    found = in_rounds(programs, rounds, folder)
    samples |= found
    step_s = {name: [median_step_s(sample) for sample in each] for name, each in found.items()}
    return [line("hosts", f"{mode} over nodes / on one host", step_s[f"{mode} over nodes"], step_s[mode], 0.97)
            for mode in configs]  # fmt: skip


def network(base: RunConfig, rounds: int, folder: Path, samples: dict) -> list[dict]:
    """All-reduces of each size."""
    lines = []
    for nbytes in MESSAGES:
        program = progs.paired("messages", in_mode(base, "ddp"), MESSAGE_PAIRS, nbytes)
        name = f"all-reduce of {in_bytes(nbytes)}"
        samples[name] = blocks = progs.execute(name, program, folder / str(nbytes))
        lines.append(line("network", f"{name} / bare loop", blocks["harness_s"], blocks["bare_s"], 0.97))
    return lines


def inputs(base: RunConfig, rounds: int, folder: Path, samples: dict) -> list[dict]:
    """Photographs of each size: by the clock, and by the worker's CPU time, which others hardly disturb."""
    write_photographs(folder / "photographs")
    lines = []
    for size in PIXELS:
        name = f"input / torchvision's, {size} pixels"
        program = progs.batches(folder / "photographs", size, PAIRS)
        samples[name] = blocks = progs.execute(name, program, folder / str(size))
        lines.append(line("input", name, blocks["harness_s"], blocks["torchvision_s"], 1.3))
        lines.append(line("input", f"{name}, CPU time", blocks["harness_cpu_s"], blocks["torchvision_cpu_s"], None))
    return lines


PARTS = {"loop": loop, "startup": startup, "hosts": hosts, "network": network, "input": inputs}


# --- rounds, ratios and words ---------------------------------------------------------------------------------------


def here(mode: str) -> bool:
    """Whether a mode can run here: Horovod may be missing."""
    return MODES[mode].needs is None or importlib.util.find_spec(MODES[mode].needs) is not None


def several() -> list[str]:
    """The compared modes of several processes."""
    return [mode for mode in COMPARED if not MODES[mode].one_process and here(mode)]


def in_mode(base: RunConfig, mode: str) -> RunConfig:
    """A resolved config of a mode; single is one process with all the threads and one device's batch."""
    devices = MODES[mode].max_devices or base.num_devices
    return resolve_here(dataclasses.replace(base, mode=mode, num_devices=devices))


def in_rounds(programs: dict[str, progs.Program], rounds: int, folder: Path) -> dict[str, list[dict]]:
    """Every program once per round; name -> one sample per round. Raises RunFailed when one does not end well."""
    samples, began = {name: [] for name in programs}, time.monotonic()
    for number in range(rounds):
        for name in order(list(programs), number):
            out = folder / f"round{number}" / name.replace(" ", "-")
            samples[name].append(progs.execute(name, programs[name], out))
        print(f"round {number + 1} of {rounds}: {time.monotonic() - began:.0f} s", flush=True)
    return samples


def median_step_s(sample: dict) -> float:
    """Seconds of the median step, of its slowest rank."""
    return formulas.median_steps(sample["step_time_s"])[0][0]


def line(part: str, name: str, a_s: list[float], b_s: list[float], target: float | None, at_most: bool = False) -> dict:
    """A row: b_s over a_s, pair by pair, with its interval. target: a lower bound of the ratio; ``at_most``, an upper
    one; None: shown, not judged."""
    ratio, low, high = formulas.log_ratio_interval(a_s, b_s, stats.t_quantile(len(a_s) - 1, 0.95))
    return {"part": part, "name": name, "ratio": ratio, "low": low, "high": high, "n": len(a_s), "target": target,
            "at_most": at_most, "verdict": verdict(low, high, target, at_most)}  # fmt: skip


def verdict(low: float, high: float, target: float | None, at_most: bool = False) -> str:
    """met: the whole interval keeps the target; missed: none of it does; else inconclusive.

    >>> verdict(0.992, 1.01, 0.99), verdict(1.2, 1.3, 1.25, at_most=True), verdict(0.9, 0.98, 0.99)
    ('met', 'inconclusive', 'missed')
    """
    if target is None:
        return ""
    if at_most:
        low, high, target = -high, -low, -target
    return "missed" if high < target else "met" if low >= target else "inconclusive"


def withhold(lines: list[dict], load: dict) -> dict[str, float]:
    """Take the verdicts away where other processes disturbed the measurement. load: of all of it (``Load.stop``).
    Returns metric -> value of what was above its threshold."""
    steal_share = (load["steal_s"] or 0.0) / (load["cores"] * load["wall_s"])
    found = above({"others_cpu_share": others_share(load), "steal_share": steal_share})
    if found:
        for each in lines:
            each["verdict"] = LABEL if each["verdict"] else ""
    return found


def grid(lines: list[dict]) -> Grid:
    """The one table."""
    head = [("what", False), ("ratio [95 % interval]", True), ("target", True), ("verdict", False), ("n", True)]
    rows = [[each["name"], f"{each['ratio']:.3f} [{each['low']:.3f} to {each['high']:.3f}]",
             "" if each["target"] is None else f"{'≤' if each['at_most'] else '≥'} {each['target']:g}",
             each["verdict"], str(each["n"])] for each in lines]  # fmt: skip
    return Grid(head, rows)


if __name__ == "__main__":
    sys.exit(main())
