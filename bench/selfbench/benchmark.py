"""``bench selfbench``: what the harness itself costs on this machine.

Every program is run once per round, on CPU workers, in an order that is rotated from round to round and reversed in
every other one, so that a machine that warms up or is disturbed favours no program. A row is the ratio of two programs:
the mean of the paired log-ratios of the rounds with Student's 95 % interval.

Parts:
- loop: each mode's loop and a bare loop in turns, in the same processes: the finest look at what the loop costs;
- overhead: each mode against a bare script of the same work, in processes of its own;
- horovod: MODE=horovod against Horovod's own way to run, a plain script under horovodrun;
- bound: ddp and horovod against processes that do not communicate, with default settings and with TUNED=1;
- startup: from the command to the first timed step, against the same engine starting a script that only joins the
  group, and against the bare loop's own first step; and the commands that must be instant;
- input: batches of photographs from JPEG files against torchvision's plain recipe, in turns, in one loader worker.

Throughput is taken at the MEDIAN step: on a shared machine a single disturbed step moves the mean of a short run by
more than the one percent that is asked about. The ratio over all steps, which also holds what happens only now and
then, is printed next to it.
"""

import dataclasses
import datetime
import importlib.util
import json
import subprocess
import tempfile
import time
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from bench import formulas
from bench.analysis import stats, tables
from bench.config.fields import variable_of
from bench.config.modes import MODES
from bench.config.options import RunConfig
from bench.errors import UserError
from bench.launch.launcher import resolve_here
from bench.measure.environment import collect_machine
from bench.selfbench import processes as progs
from bench.selfbench.input_pipeline import write_photographs
from bench.selfbench.rows import STATISTICS, Row, all_rows, interval, verdict
from bench.studies.rounds import order

PARTS = ("loop", "overhead", "horovod", "bound", "startup", "input")
TAKES = ("mode", "num_devices", "model", "image_size", "per_device_batch", "warmup_steps", "timed_steps", "lr", "seed",
         "threads", "device", "timeout", "out")  # fmt: skip
STEPS, TUNED_STEPS, WARMUP = 14, 4, 2  # some seconds each on two cores
PAIRS, BLOCK = 24, 4  # of the parts "loop" and "input": blocks of each kind; of "loop": steps a block
START = {"warmup_steps": 0, "timed_steps": 1}


def run(asked: RunConfig, rounds: int, only: str | None) -> int:
    """Run the rounds, print the table, write the file; 0 whatever the verdicts. Raises UserError and RunFailed."""
    parts = chosen_parts(only)
    asked = check(asked)
    console = tables.terminal()
    out = Path(asked.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"OUT={out} cannot be written to ({error.strerror}): choose another folder") from None
    started = datetime.datetime.now().astimezone()
    with tempfile.TemporaryDirectory(prefix="bench-selfbench-") as folder:
        first = Path(folder) / "first"
        programs = all_programs(asked, first)  # none for the parts "loop" and "input"
        rows = [row for row in all_rows() if row.part in parts and row.program in programs]
        used = {name: programs[name] for row in rows for name in (row.program, row.against) if name in programs}
        if used:
            console.print(f"{len(used)} programs, {rounds} rounds")
        for name in used:
            if name.endswith(" start"):  # uncounted: the first start reads everything from disk
                progs.execute(name, used[name], first / name.replace(" ", "-"))
        samples = run_rounds(console, used, rounds, Path(folder)) if used else {}
        importing = [name for name in used if name.startswith("bench ") and imports_torch(used[name].argv)]
        loops = paired_loops(console, asked, Path(folder)) if "loop" in parts else {}
        inputs = paired_inputs(console, Path(folder)) if "input" in parts else {}
    results = [judge_loop(name, sample) for name, sample in loops.items()]
    results += [judge(row, used, samples) for row in rows]
    results += [line for size, sample in inputs.items() for line in judge_input(size, sample)]
    machine = collect_machine()
    print_table(console, machine, results, rounds)
    for name in importing:
        console.print(f"missed: {name} imports torch")
    path = out / f"selfbench-{started:%Y%m%d-%H%M%S}.json"
    report = {
        "selfbench_version": 1,
        "started_at": started.isoformat(timespec="seconds"),
        "rounds": rounds,
        "environment": machine,
        "statistics": STATISTICS,
        "rows": results,
        "imports_torch": importing,
        "loops": loops,
        "inputs": inputs,
        "programs": {
            name: {"argv": shown(program.argv), "variables": program.variables, "samples": samples[name]}
            for name, program in used.items()
        },
    }
    path.write_text(json.dumps(report, indent=1))
    print(f"selfbench: {path}", flush=True)
    return 0


def shown(argv: list[str]) -> list[str]:
    """A command without the folders of this machine.

    >>> shown(["/home/ada/.venv/bin/python", "-m", "bench", "report", "/tmp/x1/first"])
    ['python', '-m', 'bench', 'report', 'first']
    """
    return [Path(word).name if word.startswith("/") else word for word in argv]


def chosen_parts(only: str | None) -> tuple[str, ...]:
    """All parts, or the one that was named. Raises UserError for an unknown one."""
    if only is not None and only not in PARTS:
        raise UserError(f"unknown ONLY={only}: choose one of {', '.join(PARTS)}")
    return PARTS if only is None else (only,)


def check(asked: RunConfig) -> RunConfig:
    """CPU workers, two unless more are asked for. Raises UserError for an option that would be ignored."""
    for f in dataclasses.fields(asked):
        if f.name not in TAKES and getattr(asked, f.name) != f.default:
            raise UserError(f"selfbench sets {variable_of(f)} itself: leave it out")
    if asked.device == "cuda":
        raise UserError("selfbench measures the harness on CPU workers: leave DEVICE=cuda out")
    return dataclasses.replace(asked, num_devices=max(2, asked.num_devices), device="cpu", baselines=False)


def all_programs(asked: RunConfig, records: Path) -> dict[str, progs.Program]:
    """Everything that can be run here, by name. records: a folder that will hold records to report."""
    from bench.selfbench.bare import KINDS  # imports torch

    warmup = WARMUP if asked.warmup_steps is None else asked.warmup_steps
    base = dataclasses.replace(asked, warmup_steps=warmup, timed_steps=asked.timed_steps or STEPS)
    tuned = dataclasses.replace(base, timed_steps=asked.timed_steps or TUNED_STEPS, tuned=True)
    programs = {}
    for mode, info in MODES.items():
        if info.needs and importlib.util.find_spec(info.needs) is None:
            continue
        config = in_mode(base, mode)
        programs[mode] = progs.harness(config)
        if mode in KINDS:
            programs[f"bare {mode}"] = progs.bare(config)
        if not info.one_process:
            programs[f"{mode} tuned"] = progs.harness(in_mode(tuned, mode))
        if not info.one_process and mode in KINDS:
            one_step = dataclasses.replace(config, **START)
            programs[f"{mode} start"] = progs.harness(one_step)
            programs[f"bare {mode} join"] = progs.join(config)
            programs[f"bare {mode} first step"] = progs.bare(one_step)
    programs["bench --help"] = progs.command("--help")
    programs["bench report"] = progs.command("report", str(records))
    return programs


def paired_loops(console: Console, asked: RunConfig, folder: Path) -> dict[str, dict]:
    """One paired program per way to train; mode -> its blocks, in seconds."""
    base = dataclasses.replace(asked, warmup_steps=WARMUP, timed_steps=BLOCK)
    samples = {}
    for mode, info in MODES.items():
        if not info.baseline and (info.needs is None or importlib.util.find_spec(info.needs)):
            samples[mode] = progs.execute(mode, progs.paired(in_mode(base, mode), PAIRS), folder / f"loop-{mode}")
            console.print(f"loop of {mode}: {PAIRS} pairs")
    return samples


def paired_inputs(console: Console, folder: Path) -> dict[int, dict]:
    """One paired program per image size; size -> its blocks, in seconds."""
    write_photographs(folder / "photographs")
    samples = {}
    for size in (224, 64):
        program = progs.batches(folder / "photographs", size, PAIRS)
        samples[size] = progs.execute(f"input of {size} pixels", program, folder / f"input-{size}")
        console.print(f"input of {size} pixels: {PAIRS} pairs")
    return samples


def judge_loop(mode: str, sample: dict) -> dict:
    """A line of the part "loop"."""
    row = Row("loop", f"{mode} loop / bare loop, same process", mode, "bare", "throughput", 0.99)
    return judge_pairs(row, sample["harness_s"], sample["bare_s"])


def judge_input(size: int, sample: dict) -> list[dict]:
    """Two lines of the part "input": by the clock, and by the worker's CPU time, which others hardly disturb."""
    name, pair = f"input / torchvision's, {size} pixels", ("harness", "torchvision", "throughput")
    clock = judge_pairs(Row("input", name, *pair, 1.3), sample["harness_s"], sample["torchvision_s"])
    cpu = Row("input", f"{name}, CPU time", *pair, None)
    return [clock, judge_pairs(cpu, sample["harness_cpu_s"], sample["torchvision_cpu_s"])]


def judge_pairs(row: Row, harness_s: list[float], other_s: list[float]) -> dict:
    """The line of blocks that took turns: the other's time over the harness's."""
    quantile = stats.t_quantile(len(other_s) - 1, 0.95)
    ratio, low, high = formulas.log_ratio_interval(harness_s, other_s, quantile)
    line = dataclasses.asdict(row) | {"ratio": ratio, "low": low, "high": high, "n": len(other_s)}
    return line | {"verdict": verdict(row, low, high)}


def in_mode(base: RunConfig, mode: str) -> RunConfig:
    """A resolved config of a mode; single is one process with all the threads and one device's batch."""
    devices = MODES[mode].max_devices or base.num_devices
    return resolve_here(dataclasses.replace(base, mode=mode, num_devices=devices))


def run_rounds(console: Console, programs: dict, rounds: int, folder: Path) -> dict[str, list[dict]]:
    """Every program once per round; one sample per round for each. Raises RunFailed when one does not end well."""
    samples, started = {name: [] for name in programs}, time.monotonic()
    for number in range(rounds):
        for name in order(list(programs), number):
            out = folder / f"round{number}" / name.replace(" ", "-")
            samples[name].append(progs.execute(name, programs[name], out))
        console.print(f"round {number + 1} of {rounds}: {time.monotonic() - started:.0f} s")
    return samples


def imports_torch(argv: list[str]) -> bool:
    """Whether a command of Python imports torch."""
    words = [argv[0], "-X", "importtime", *argv[1:]]
    listing = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL).stderr
    return any(line.split("|")[-1].strip() == "torch" for line in listing.splitlines())


def judge(row: Row, programs: dict, samples: dict) -> dict:
    """A row's line: the ratio by its figure and, for throughput, over all steps too."""
    ratio, low, high = interval(row, row.statistic, programs, samples)
    line = dataclasses.asdict(row) | {"ratio": ratio, "low": low, "high": high, "n": len(samples[row.program])}
    if row.statistic == "throughput":
        line["all_steps"] = interval(row, "mean throughput", programs, samples)
    return line | {"verdict": verdict(row, low, high)}


def print_table(console: Console, machine: dict, lines: list[dict], rounds: int) -> None:
    """The one table."""
    facts, versions = machine["machine"], machine["versions"]
    said = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "horovod") if versions.get(name))
    console.print(
        f"{facts['cpu_model']}, {facts['usable_cores']} cores; {said}; {rounds} rounds; ratio [95 % interval]"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("what", "ratio", "target", "verdict", "all steps", "n"):
        table.add_column(column, justify="left" if column in ("what", "verdict") else "right", no_wrap=True)
    for line in lines:
        target = "" if line["target"] is None else f"{'≤' if line['at_most'] else '≥'} {line['target']:g}"
        ratio = f"{line['ratio']:.3f} [{line['low']:.3f}–{line['high']:.3f}]"
        every = f"{line['all_steps'][0]:.3f}" if "all_steps" in line else ""
        table.add_row(line["name"], ratio, target, line["verdict"], every, str(line["n"]))
    tables.print_table(console, table)
