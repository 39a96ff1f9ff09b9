"""`bench predict memory`: memory of a step per device, by purpose, and the largest batch that fits."""

import contextlib
import dataclasses
import functools
import os
from pathlib import Path
from typing import NamedTuple

from bench.analysis import tables
from bench.config import gpu_defaults
from bench.config.command_line import from_arguments
from bench.config.data_sets import OWN, data_kind, info_of
from bench.config.modes import COMPARED, MODES, UPPER_BOUNDS
from bench.config.options import KNOBS, UNSET, Parallel, RunConfig
from bench.config.resolve import resolve
from bench.config.rules import GPT
from bench.config.workloads import work, workload_of
from bench.errors import ExitCode, UserError
from bench.files import PROJECT
from bench.launch.devices import LEAST_FREE_GIB, usable_gpus
from bench.launch.launcher import resolve_here
from bench.measure import cgroup
from bench.measure.environment import usable_cores
from bench.measure.memory import read_rss
from bench.measure.nvml import GIB
from bench.profile.memory_parts import CONTEXT
from bench.record.describe import memory_difference, used_gpus
from bench.record.read import find_records
from bench.record.view import Record
from bench.studies.programs import modes_of

MOST_BATCH = 2**20
MOST_CLASSES = 1000  # of a folder that cannot be read: ImageNet's
PROGRAM = "Python, torch"


def run(args) -> int:
    """Print the table, the assumptions, and whether BATCH fits. Returns FOUND if it does not."""
    from bench.predict.memory.plan import of_devices  # torch takes seconds

    console, typed = tables.terminal(), from_arguments(args)
    asked = with_photographs(typed)
    modes = modes_of(args.modes) if args.modes else [*COMPARED, *UPPER_BOUNDS]
    modes = [asked.mode] if args.mode is not None else modes
    configs = planned(asked, modes)
    columns, batches, moments, mismatches, said = [], [], [], [], []
    for config in configs:
        fit = largest_here(config)
        per_device = f"{workload_of(config).batched} per device"
        said += [f"largest BATCH: {per_device} that {fit.limit_text}, at most the data set", *fit.notes]
        devices = of_devices(config, fit.outputs)
        if config.per_device_batch > fit.batch:
            largest = f"BATCH={fit.batch} at most" if fit.batch else "not even BATCH=1"
            mismatches.append(f"MODE={config.mode} {largest} in {fit.limit / GIB:.1f} GiB")
        name = CONTEXT if config.device == "cuda" else PROGRAM
        for label, device in distinct_devices(config, devices):
            columns.append((f"{config.mode}\n{label}", in_gib(device) | {name: fit.overhead_gib}))
            batches.append(str(fit.batch))
            moments.append(device.moment)
        if MODES[config.mode].one_process and len(devices) > 1:
            said.append(memory_difference(config.mode, in_gib(devices[0]), in_gib(devices[1])))
    config = configs[0]
    console.print(f"{in_words(config)}\npredicted, not measured: peak memory of a step by category")
    tables.print_grid(console, tables.memory_grid(columns, more={"peak in": moments, "largest BATCH": batches},
                                                 examples=workload_of(config).batched))  # fmt: skip
    notes = [ASSUMED_DATA if asked != typed and config.device == "cpu" else "", *said, *NOT_IN_IT[config.device]]
    for note in dict.fromkeys(filter(None, notes)):
        console.print(f"note: {note}")
    if mismatches:
        batch = config.per_device_batch
        hint = "; MEMORY_GIB=16 predicts for GPUs of 16 GiB" if not config.memory_gib and config.device == "cpu" else ""
        console.print(f"BATCH={batch} does not fit: {'; '.join(mismatches)}{hint}")
        return ExitCode.FOUND
    return ExitCode.DONE


NOT_IN_IT = {
    "cuda": [
        "not included: memory cached by torch's allocator (cache, fragmentation) and cuDNN workspaces: leave room"
    ],
    "cpu": ["not included: Gloo buffers, loader workers and the data set"],
}
PIXELS = 224
ASSUMED_DATA = (
    f"images of {PIXELS} px and their classes are assumed: set others with DATA= and IMAGE_SIZE= (a run on a "
    "CPU has smaller ones by default)"
)


def with_photographs(asked: RunConfig) -> RunConfig:
    """Without DATA, assume photographs of 224 px, as in a run on a GPU. Runs on a CPU default to small images, so
    that they finish in seconds; a prediction does not need that."""
    model = asked.model or ""
    if asked.data is None and asked.image_size is None and model != GPT and ":" not in model:
        return dataclasses.replace(asked, data="synthetic", image_size=PIXELS)
    return asked


def planned(asked: RunConfig, modes: list[str]) -> list[RunConfig]:
    """The resolved config of each mode, with its backend options. MEMORY_GIB: of a recent GPU that is not available."""
    configs, one = [], modes == [asked.mode]
    for mode in modes:
        changes = {name: UNSET[name] for name in KNOBS if name not in MODES[mode].knobs}
        changes |= {"mode": mode, "launcher": "auto"} if not one else {}
        changes |= {"num_devices": 1, "gpu_ids": None} if not one and MODES[mode].max_devices == 1 else {}
        config = dataclasses.replace(asked, **({} if one else changes))
        if asked.memory_gib is None or asked.device == "cpu":
            configs.append(resolve_here(config))
        else:
            configs.append(resolve(config, "cuda", usable_cores(), gpu_defaults.BF16, asked.memory_gib))
    return configs


def in_words(config: RunConfig) -> str:
    passes = f" × {config.accumulate} passes" if config.accumulate > 1 else ""
    return (
        f"{work(config)}, {config.per_device_batch} {workload_of(config).batched} per device{passes},"
        f" {config.precision}, {config.optimizer}, {config.device}"
    )


def distinct_devices(config: Parallel, devices: list) -> list[tuple]:
    """(label, device), one for equal devices; of ranks with different shards the largest."""
    if not MODES[config.mode].one_process and len({device.total for device in devices}) > 1:
        return [(f"fullest of {len(devices)}", max(devices, key=lambda device: device.total))]
    if config.device == "cpu":
        return [("1 process" if len(devices) == 1 else f"each of {len(devices)}", devices[0])]
    if len(devices) == 1 or devices[0] == devices[1]:
        return [("device 0" if len(devices) == 1 else f"each of {len(devices)}", devices[0])]
    rest = "device 1" if len(devices) == 2 else f"each of 1 to {len(devices) - 1}"
    return [("device 0", devices[0]), (rest, devices[1])]


def in_gib(device) -> dict[str, float]:
    return {kind: size / GIB for kind, size in device.parts.items()}


# --- what fits ------------------------------------------------------------------------------------------------------


def memory_limit(config: RunConfig) -> tuple[float, str]:
    """Bytes available to one device, or on a CPU to one process; and their source."""
    if config.memory_gib is not None:
        devices = config.num_devices // config.num_processes if config.device == "cpu" else 1  # of dp's one process
        each = f" for each of {devices} devices" if devices > 1 else ""
        return devices * config.memory_gib * GIB, f"fit into {config.memory_gib:g} GiB{each} (MEMORY_GIB)"
    if config.device == "cuda":
        gpus = usable_gpus(config)[: config.num_devices]
        sizes = [gpu.memory_total_gib for gpu in gpus if gpu.memory_total_gib]
        if not sizes:
            raise UserError("NVML does not report the GPU's memory: give it, as in MEMORY_GIB=16")
        return min(sizes) * GIB, f"fit into the {min(sizes):g} GiB of {gpus[0].name} (NVML)"
    have = available()
    words = f"fit into the {have / GIB:.1f} GiB that this machine has available now"
    return have / config.num_processes, words + (
        f", over {config.num_processes} processes" * (config.num_processes > 1)
    )


@functools.cache
def available() -> int:
    """Bytes available to this machine, or its control group, at the first call."""
    import psutil

    free, allowed = psutil.virtual_memory().available, cgroup.memory_limit()
    return min(free, allowed) if allowed else free


class Fit(NamedTuple):
    """batch: the largest per device, at most the data; 0 if none fits. limit: bytes of one device. outputs: of the
    model. overhead_gib: memory outside tensors. notes: what was assumed."""

    batch: int
    limit: float
    limit_text: str
    outputs: int
    overhead_gib: float
    notes: list[str]


def largest_here(config: RunConfig) -> Fit:
    """The largest batch per device that fits, and what that is computed from. Raises UserError."""
    from bench.predict.memory.plan import largest_batch

    limit, limit_text = memory_limit(config)
    outputs, note = count_outputs(config)
    overhead_gib, assumed = process_overhead(config)
    batch = largest_batch(config, outputs, int(limit - overhead_gib * GIB), most_examples(config))
    return Fit(batch, limit, limit_text, outputs, overhead_gib, [note, assumed])


def most_examples(config: RunConfig) -> int:
    """The largest batch per device that the training set has."""
    own = data_kind(config.data)[0] == OWN
    examples = load_own_sizes(config)[1] if own else info_of(config.data).train_examples
    return examples // config.num_devices // config.accumulate if examples else MOST_BATCH


def process_overhead(config: RunConfig) -> tuple[float, str]:
    """GiB of a process in addition to its tensors, and the source: records of this kind of GPU, or an assumption; on
    a CPU this process, which has only Python and torch in memory."""
    if config.device == "cpu":
        return initial_process_bytes() / GIB, f"{PROGRAM}: measured on this process, which has loaded both"
    names = {gpu.name for gpu in usable_gpus(config)} if config.device == "cuda" else set()
    seen = [(size, record.run_id) for record in records_of(config.out) if set(used_gpus(record)) & names
            and (size := context_of(record)) is not None]  # fmt: skip
    if seen:
        size, run_id = max(seen)
        return size, f"{CONTEXT}: from the record {run_id} on this kind of GPU"
    return (
        LEAST_FREE_GIB,
        f"{CONTEXT}: {LEAST_FREE_GIB:g} GiB is an assumption until a run on such a GPU has measured it",
    )


@functools.cache
def initial_process_bytes() -> int:
    """Resident bytes of this process with torch, at the first call: predictions make it grow."""
    import torch  # noqa: F401

    return read_rss(os.getpid())


@functools.cache
def records_of(out: str) -> list[Record]:
    found = []
    for folder in (Path(out), PROJECT / "results" / "reference"):
        with contextlib.suppress(UserError):  # there is none yet
            found += find_records(folder)[0]
    return [record for record in found if record.ok and record.on_gpu]


def context_of(record: Record) -> float | None:
    """GiB that a process had on its fullest GPU outside torch's allocator; None if unknown."""
    told = [d["nvml_process"] - d["torch_reserved"] for d in record.peak_memory
            if d.get("nvml_process") is not None and d.get("torch_reserved") is not None]  # fmt: skip
    return max(told, default=None)


@functools.cache
def load_own_sizes(config: RunConfig) -> tuple[int, int]:
    """(outputs of a model, training examples) of the user's data, which are loaded."""
    import torch

    from bench.workload import load_workload
    from bench.workload.own import OneProcess

    workload = load_workload(dataclasses.replace(config, evaluate=False), torch.device("cpu"))
    train_set, _ = workload.load(OneProcess(), lambda sentence: None)
    return workload.num_outputs, len(train_set)


def count_outputs(config: RunConfig) -> tuple[int, str]:
    """How many classes the data have, and a note where that is assumed: a folder has one subfolder for each."""
    kind, place = data_kind(config.data)
    if classes := info_of(config.data).classes:
        return classes, ""
    if kind == OWN:
        from bench.workload.own import PLANNED

        return load_own_sizes(config)[
            0
        ], f"every example is assumed to be as large as the largest of the first {PLANNED}"
    train = Path(place).expanduser() / "train"
    if kind == "imagefolder" and train.is_dir() and (found := sum(entry.is_dir() for entry in train.iterdir())):
        return found, ""
    return MOST_CLASSES, f"{MOST_CLASSES} classes are assumed: DATA={config.data} was not opened"
