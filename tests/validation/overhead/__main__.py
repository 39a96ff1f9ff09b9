"""``bench selfbench``: what the harness itself costs on this machine.

Every program is run once per round, on CPU workers (but for the part "gpu"), in an order that is rotated from round to
round and reversed in every other one, so that a machine that warms up or is disturbed favours no program. A row is the
ratio of two programs: the mean of the paired log-ratios of the rounds with Student's 95 % interval.

Parts:
- loop: each mode's loop and a bare loop in turns, in the same processes: the finest look at what the loop costs;
- progress: what lines of progress add to a step, from parts that are timed by themselves;
- overhead: each mode against a bare script of the same work, in processes of its own;
- horovod: MODE=horovod against Horovod's own way to run, a plain script under horovodrun;
- bound: ddp and horovod against processes that do not communicate, with default settings and with TUNED=1;
- startup: from the command to the first timed step, against the same engine starting a script that only joins the
  group, and against the bare loop's own first step, also where `bench run` joins the engine as that loop does; and the
  commands that must be instant;
- input: batches of photographs from JPEG files against torchvision's plain recipe, in turns, in one loader worker; and
  how many images per second all workers feed to the device, on a GPU also with DECODE=cuda;
- hosts: ddp and horovod with every rank on a node of its own, network namespaces of this machine with links that are
  not limited, against the same ranks on one host. Left out where there can be no such nodes;
- network: all-reduces as `bench network` times them against a bare loop of them, in turns, in the same processes;
- gpu: the loop on one GPU, as MODE=single runs by default, against a bare loop of its own with the same settings, in
  turns, in one process. Left out where there is no GPU.

Throughput is taken at the MEDIAN step: on a shared machine a single disturbed step moves the mean of a short run by
more than the one percent that is asked about. The ratio over all steps, which also holds what happens only now and
then, is printed next to it.
"""

import dataclasses
import datetime
import importlib.util
import json
import statistics
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
from bench.config.modes import COMPARED, MODES
from bench.config.options import FIELDS, PLAIN, RunConfig
from bench.errors import UserError
from bench.launch.cluster.make import isolate
from bench.launch.devices import usable_gpus
from bench.launch.launcher import resolve_here
from bench.measure import nvml
from bench.measure.environment import collect_machine, cores_in_words, usable_cores
from bench.measure.load import Load, others_share
from bench.proof.selfbench import PARTS
from bench.proof.selfbench import processes as progs
from bench.proof.selfbench.input_pipeline import write_photographs
from bench.proof.selfbench.rows import STATISTICS, Row, all_rows, interval, verdict
from bench.record.disturbance import LABEL, above, in_words
from bench.studies.rounds import order
from bench.without_training.network.plan import in_bytes

TAKES = ("mode", "num_devices", "model", "image_size", "per_device_batch", "warmup_steps", "timed_steps", "lr", "seed",
         "threads", "device", "timeout", "out")  # fmt: skip
GPU_TAKES = ("plain", *PLAIN)  # ONLY=gpu takes these, too
STEPS, TUNED_STEPS, WARMUP = 14, 4, 2  # some seconds each on two cores
GPU_WARMUP, GPU_BLOCK = 20, 10  # steps
FED = {"rounds": 4, "batches": 40}
PAIRS, BLOCK = 24, 4  # of "loop", "input" and "gpu": blocks of each kind; of "loop": steps per block
MESSAGE_PAIRS = 480  # of "network": blocks of 50 ms, of which 24 gave an interval of 30 %
MESSAGES = (2**16, 2**22)  # bytes
START = {"warmup_steps": 0, "timed_steps": 1}


def run(asked: RunConfig, rounds: int, only: str | None) -> int:
    """Run the rounds, print the table, write the file; 0 whatever the verdicts. Raises UserError and RunFailed."""
    parts, console = chosen_parts(only), tables.terminal()
    on_gpu = gpu_config(asked) if "gpu" in parts else None
    if "gpu" in parts and not on_gpu:
        console.print(f"left out: gpu: no GPU is visible here: {nvml.why_no_gpu()}", highlight=False, markup=False)
        if only == "gpu":
            return 0
    no_nodes = why_no_nodes() if "hosts" in parts else ""
    if no_nodes:
        console.print(f"left out: hosts: {no_nodes}", highlight=False, markup=False)
        if only == "hosts":
            return 0
    given, asked = asked, check(asked, parts)
    out = Path(asked.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"OUT={out} cannot be written to ({error.strerror}): choose another folder") from None
    started, load = datetime.datetime.now().astimezone(), Load()
    with tempfile.TemporaryDirectory(prefix="bench-selfbench-") as folder:
        first = Path(folder) / "first"
        programs = all_programs(asked, first)  # none for the parts "loop", "progress" and "input"
        left_out = {"hosts"} if no_nodes else set()
        rows = [row for row in all_rows() if row.part in {*parts} - left_out and row.program in programs]
        used = {name: programs[name] for row in rows for name in (row.program, row.against) if name in programs}
        if used:
            console.print(f"{len(used)} programs, {rounds} rounds")
        for name in used:
            if name.endswith(" start"):  # uncounted: the first start reads everything from disk
                progs.execute(name, used[name], first / name.replace(" ", "-"))
        samples = run_rounds(console, used, rounds, Path(folder)) if used else {}
        importing = [name for name in used if name.startswith("bench ") and imports_torch(used[name].argv)]
        loops = paired_loops(console, asked, Path(folder)) if "loop" in parts else {}
        told = progs.execute("progress", progs.progress(PAIRS), Path(folder) / "told") if "progress" in parts else None
        inputs = paired_inputs(console, Path(folder)) if "input" in parts else {}
        fed = feed(console, given, Path(folder)) if "input" in parts else {}
        gpu = progs.execute("gpu", progs.gpu_loop(on_gpu, PAIRS), Path(folder) / "gpu") if on_gpu else {}
        messages = paired_messages(console, asked, Path(folder)) if "network" in parts else {}
    results = [judge_loop(name, sample) for name, sample in loops.items()]
    results += [judge_progress(told)] if told else []
    results += [judge(row, used, samples) for row in rows]
    results += [line for size, sample in inputs.items() for line in judge_input(size, sample)]
    if "nvjpeg_s" in fed:
        row = Row("input", "images fed, DECODE=cuda / DECODE=cpu", "nvjpeg", "workers", "throughput", None)
        results.append(judge_pairs(row, fed["nvjpeg_s"], fed["workers_s"]))
    if on_gpu:
        results.append(judge_gpu(on_gpu, gpu))
        console.print(gpu_words(on_gpu, gpu), highlight=False)
    results += [judge_messages(nbytes, sample) for nbytes, sample in messages.items()]
    disturbance = withhold(results, load.stop())
    machine = collect_machine()
    print_table(console, machine, results, rounds)
    if disturbance:
        console.print(f"{LABEL}: {in_words(disturbance)}: no verdict", highlight=False)
    for name in importing:
        console.print(f"missed: {name} imports torch")
    path = out / f"selfbench-{started:%Y%m%d-%H%M%S}.json"
    report = {
        "selfbench_version": 1,
        "started_at": started.isoformat(timespec="seconds"),
        "rounds": rounds,
        "environment": machine,
        "statistics": STATISTICS,
        "disturbance": disturbance,
        "rows": results,
        "imports_torch": importing,
        "loops": loops,
        "progress": told,
        "inputs": inputs,
        "fed": fed,
        "gpu": {"config": progs.changes(on_gpu), **gpu} if on_gpu else {},
        "messages": messages,
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


def why_no_nodes() -> str:
    """Why namespaces of this machine cannot be nodes; "" where they can."""
    try:
        isolate()
    except UserError as error:
        return str(error)
    return ""


def check(asked: RunConfig, parts: tuple[str, ...]) -> RunConfig:
    """CPU workers, two unless more are asked for. Raises UserError for an option that would be ignored."""
    takes = TAKES + GPU_TAKES if parts == ("gpu",) else TAKES
    for f in FIELDS.values():
        if f.name not in takes and getattr(asked, f.name) != f.default:
            raise UserError(f"selfbench sets {variable_of(f)} itself: leave it out")
    if asked.device == "cuda" and parts != ("gpu",):
        raise UserError("selfbench measures the harness on CPU workers, but for ONLY=gpu: leave DEVICE=cuda out")
    return dataclasses.replace(asked, num_devices=max(2, asked.num_devices), device="cpu", baselines=False)


def gpu_config(asked: RunConfig) -> RunConfig | None:
    """What the part "gpu" runs: MODE=single on the first GPU with what is chosen for it; None where there is none, or
    DEVICE=cpu."""
    if asked.device == "cpu" or not usable_gpus(asked):
        return None
    steps = {"warmup_steps": asked.warmup_steps or GPU_WARMUP, "timed_steps": asked.timed_steps or GPU_BLOCK}
    alone = {"mode": "single", "num_devices": 1, "data": "synthetic", "device": "cuda", "baselines": False}
    return resolve_here(dataclasses.replace(asked, **alone, **steps))


def all_programs(asked: RunConfig, records: Path) -> dict[str, progs.Program]:
    """Everything that can be run here, by name. records: a folder that will hold records to report."""
    from bench.proof.selfbench.bare import KINDS  # imports torch

    warmup = WARMUP if asked.warmup_steps is None else asked.warmup_steps
    base = dataclasses.replace(asked, warmup_steps=warmup, timed_steps=asked.timed_steps or STEPS)
    tuned = dataclasses.replace(base, timed_steps=asked.timed_steps or TUNED_STEPS, tuned=True)
    programs = {}
    for mode, info in MODES.items():
        if info.on_request or (info.needs and importlib.util.find_spec(info.needs) is None):
            continue
        config = in_mode(base, mode)
        programs[mode] = progs.harness(config)
        if mode in KINDS:
            programs[f"bare {mode}"] = progs.bare(config)
        if not info.one_process:
            programs[f"{mode} tuned"] = progs.harness(in_mode(tuned, mode))
            programs[f"{mode} over nodes"] = progs.over_nodes(config)
        if not info.one_process and mode in KINDS:
            one_step = dataclasses.replace(config, **START)
            programs[f"{mode} start"] = progs.harness(one_step)
            programs[f"joined {mode} start"] = progs.joined(one_step)
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
        if mode in COMPARED and (info.needs is None or importlib.util.find_spec(info.needs)):
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


def feed(console: Console, asked: RunConfig, folder: Path) -> dict[str, list[float]]:
    """The input pipeline alone, with a loader worker per core: on the first GPU, or on the CPU where there is none. Its
    blocks, in seconds, of each way to decode."""
    device = "cpu" if asked.device == "cpu" or not usable_gpus(asked) else "cuda"
    config = resolve_here(RunConfig(
        mode="single", device=device, data=f"imagefolder:{folder / 'photographs'}", image_size=224, plain=True,
        per_device_batch=64, workers=usable_cores(), in_memory=False,
    ))  # fmt: skip
    sample = progs.execute("fed", progs.fed(config, **FED), folder / "fed")
    for name, what in {"workers_s": f"{config.workers} workers decode", "nvjpeg_s": "the GPU decodes"}.items():
        if name in sample:
            rate = config.per_device_batch * FED["batches"] / statistics.median(sample[name])
            console.print(f"input of 224 pixels alone, {what}: {rate:.0f} images/s", highlight=False)
    return sample


def paired_messages(console: Console, asked: RunConfig, folder: Path) -> dict[int, dict]:
    """One paired program per size of a message; bytes -> its blocks, in seconds."""
    samples = {}
    for nbytes in MESSAGES:
        program = progs.messages(in_mode(asked, "ddp"), nbytes, MESSAGE_PAIRS)
        samples[nbytes] = progs.execute(f"all-reduces of {in_bytes(nbytes)}", program, folder / f"messages-{nbytes}")
        console.print(f"all-reduces of {in_bytes(nbytes)}: {MESSAGE_PAIRS} pairs")
    return samples


def judge_messages(nbytes: int, sample: dict) -> dict:
    """A line of the part "network"."""
    row = Row("network", f"all-reduce of {in_bytes(nbytes)} / bare loop", "network", "bare", "throughput", 0.97)
    return judge_pairs(row, sample["harness_s"], sample["bare_s"])


def judge_loop(mode: str, sample: dict) -> dict:
    """A line of the part "loop"."""
    row = Row("loop", f"{mode} loop / bare loop, same process", mode, "bare", "throughput", 0.99)
    return judge_pairs(row, sample["harness_s"], sample["bare_s"])


def judge_progress(sample: dict) -> dict:
    """The line of the part "progress"."""
    name = f"a step of {1e3 * sample['bare_s'][0]:g} ms / with progress told, from parts"
    row = Row("progress", name, "harness", "bare", "throughput", 0.99)
    return judge_pairs(row, sample["harness_s"], sample["bare_s"])


def judge_gpu(config: RunConfig, sample: dict) -> dict:
    """The line of the part "gpu"."""
    settings = [
        config.precision,
        *(name for name in ("channels_last", "cudnn_benchmark", "fused") if getattr(config, name)),
    ]
    name = f"loop on a GPU / bare loop with the same settings, {', '.join(settings)}"
    row = Row("gpu", name, "single", "bare", "throughput", 0.98)
    return judge_pairs(row, sample["harness_s"], sample["bare_s"])


def gpu_words(config: RunConfig, sample: dict) -> str:
    """The throughput of both at their median block."""
    images = config.global_batch * config.timed_steps
    harness, bare = (images / statistics.median(sample[name]) for name in ("harness_s", "bare_s"))
    work = f"{config.model}, {config.image_size} px, {config.per_device_batch} images per step"
    return f"gpu: {work}: {harness:.0f} images/s, bare {bare:.0f}"


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


def withhold(lines: list[dict], load: dict) -> dict[str, float]:
    """Take the verdicts away where other processes disturbed the measurement. load: of all of it (``Load.stop``).
    Returns metric -> value of what was above its threshold."""
    steal_share = (load["steal_s"] or 0.0) / (load["cores"] * load["wall_s"])
    found = above({"others_cpu_share": others_share(load), "steal_share": steal_share})
    if found:
        for line in lines:
            line["verdict"] = LABEL if line["verdict"] else ""
    return found


def print_table(console: Console, machine: dict, lines: list[dict], rounds: int) -> None:
    """The one table."""
    facts, versions = machine["machine"], machine["versions"]
    said = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "horovod") if versions.get(name))
    console.print(
        f"{facts['cpu_model']}, {cores_in_words(facts['usable_cores'])}; {said}; {rounds} rounds; ratio [95 % interval]"
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
