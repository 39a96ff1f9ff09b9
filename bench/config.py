"""RunConfig: the one description of a run.

A flat, frozen, validated dataclass. The flags of the command line, the variables of the Makefile and the
``config`` field of a record are all derived from its fields; nothing else defines an option. It imports no torch.

What comes in: what a person typed. What goes out: a config in which every ``None`` has been replaced by a default
that suits the device (``resolve``), or a ``UserError`` that names the option and says what to do.
"""

import argparse
import dataclasses
import re
from dataclasses import dataclass, field

from bench.errors import UserError
from bench.modes import LAUNCHERS, MODES

DATASETS = ("digits", "synthetic")
PRECISIONS = ("fp32", "tf32", "bf16")
NORMS = ("batch", "none")
OPTIMIZERS = ("sgd", "adam", "adamw")
DEVICES = ("auto", "cpu", "cuda")
FAULT_KINDS = ("raise", "kill", "hang")
COMPRESSIONS = ("none", "fp16", "bf16", "powersgd")
LABELS = ("suite", "role", "round")  # where a run belongs, not what it does

DIGITS_TRAIN_IMAGES = 1437  # scikit-learn's 1797 digits, less the 360 held out for validation


# Every option that only some modes have: the union of the table's.
KNOBS = {name for info in MODES.values() for name in info.knobs}


def option(default, help, flag=None, choices=None, minimum=None, exclusive_minimum=None):
    """A field of RunConfig with what the command line and the checks need to know of it."""
    meta = {"help": help, "flag": flag, "choices": choices, "min": minimum, "above": exclusive_minimum}
    return field(default=default, metadata=meta)


@dataclass(frozen=True)
class RunConfig:
    """One run. ``None`` means: choose by device; ``resolve`` fills it in."""

    mode: str = option("ddp", "the data-parallel pattern, or the baseline 'independent'", choices=tuple(MODES))
    num_devices: int = option(1, "GPUs to use; on a machine without GPUs, CPU workers", flag="gpus", minimum=1)
    model: str | None = option(None, "torchvision classification model (cpu: resnet18, gpu: resnet50)")
    data: str | None = option(None, "cpu: digits, gpu: synthetic", choices=DATASETS)
    image_size: int | None = option(None, "pixels a side (cpu: 16, gpu: 224)", minimum=8)
    per_device_batch: int | None = option(
        None, "images per device per step (cpu: 32, gpu: 64)", flag="batch", minimum=1
    )
    warmup_steps: int | None = option(None, "untimed steps first (cpu: 3, gpu: 20)", flag="warmup", minimum=0)
    timed_steps: int | None = option(None, "timed steps (cpu: 10, gpu: 100)", flag="steps", minimum=1)
    epochs: int = option(0, "train so many epochs instead, and validate after each", minimum=0)
    lr: float = option(0.05, "learning rate", exclusive_minimum=0)
    momentum: float = option(0.9, "momentum of sgd", minimum=0)
    weight_decay: float = option(0.0, "weight decay", minimum=0)
    optimizer: str = option("sgd", "the optimizer", choices=OPTIMIZERS)
    norm: str = option("batch", "'none': every batch norm becomes a scale and a shift", choices=NORMS)
    precision: str = option("fp32", "arithmetic of the step", choices=PRECISIONS)
    seed: int = option(0, "seed of weights and of data order", minimum=0)
    workers: int = option(0, "data loader workers in TOTAL, shared out over the processes", minimum=0)
    threads: int | None = option(None, "CPU threads in TOTAL (default: the usable cores)", minimum=1)
    launcher: str = option(
        "auto", "how the processes are started (ddp: torchrun or spawn)", choices=("auto", *LAUNCHERS)
    )
    dist_url: str | None = option(None, "rendezvous: tcp://HOST:PORT, or file:///PATH (spawn only)")
    device: str = option("auto", "auto: GPUs where there are any", choices=DEVICES)
    share_gpu: bool = option(False, "all ranks on ONE GPU, over Gloo: for learning, not for speed")
    tuned: bool = option(False, "engine settings and batch that hide communication (see README)")
    # The engines' own options: the table in bench/modes says which mode has which.
    bucket_cap_mb: float | None = option(None, "ddp: MiB of gradients a bucket (25)", exclusive_minimum=0)
    gradient_as_bucket_view: bool = option(False, "ddp: gradients live in their buckets")
    static_graph: bool = option(False, "ddp: the graph is the same every step")
    broadcast_buffers: bool = option(True, "ddp: rank 0's buffers are sent to all before each forward")
    overlap: bool = option(True, "0: every reduction after the whole backward pass")
    compression: str = option("none", "gradients on the wire (powersgd: ddp alone)", choices=COMPRESSIONS)
    fusion_mb: float | None = option(None, "horovod: MiB of the fusion buffer (128)", minimum=0)
    cycle_time_ms: float | None = option(None, "horovod: ms between two looks for work (1)", exclusive_minimum=0)
    autotune: bool = option(False, "horovod: let it choose fusion and cycle while it runs")
    adasum: bool = option(False, "horovod: Adasum instead of the mean (needs a Horovod with MPI)")
    sync: bool = option(True, "0: no gradient is exchanged; the step without its communication, not training")
    # Switches to study with.
    step_barrier: bool = option(False, "an unfairness to study: a barrier and three reductions every step")
    item_sync: bool = option(False, "an unfairness to study: loss.item() every step")
    storage_ms: float = option(0.0, "simulated wait for storage in the loader, ms an image", minimum=0)
    profile: bool = option(False, "torch.profiler round one more step: its timeline goes into the record")
    baselines: bool | None = option(None, "also run the two baselines (cpu: 1, gpu: 0)")
    timeout: float = option(900.0, "seconds after which the run is ended", exclusive_minimum=0)
    out: str = option("results/runs", "folder for run folders")
    snapshots: str | None = option(None, "save weights after these steps, as in 1,5,20 (what verify compares)")
    fault: str | None = option(None, "break it on purpose: raise|kill|hang:RANK:STEP, as in kill:1:3")
    suite: str | None = option(None, "label: the suite this run belongs to")
    role: str | None = option(None, "label: what this run is in its suite")
    round: int | None = option(None, "label: the round of its suite", minimum=0)

    def __post_init__(self):
        for f in dataclasses.fields(self):
            check_value(f, getattr(self, f.name))
        check_launcher(self)
        check_knobs(self)
        most = MODES[self.mode].max_devices
        if most and self.num_devices > most:
            raise UserError(
                f"MODE={self.mode} is one device, but GPUS={self.num_devices}: use GPUS=1, or MODE=dp, ddp or horovod"
            )
        if self.seed >= 2**63:
            raise UserError(f"SEED={self.seed} is too large: below 2**63")
        if self.data == "synthetic" and self.workers:
            raise UserError("DATA=synthetic comes from memory and has no loader: leave WORKERS at 0")
        if self.data == "digits" and self.per_device_batch:
            check_batch(self)
        if self.fault:
            parse_fault(self.fault, self.num_processes)
        if self.snapshots:
            parse_snapshots(self.snapshots)

    @property
    def global_batch(self) -> int:
        """Images per step over all devices."""
        return self.per_device_batch * self.num_devices

    @property
    def num_processes(self) -> int:
        """Processes that train: one a device, or one in all for single and dp."""
        return 1 if MODES[self.mode].one_process else self.num_devices


# What every option is when nobody gives it.
UNSET = {f.name: f.default for f in dataclasses.fields(RunConfig)}


def flag_of(f: dataclasses.Field) -> str:
    """The command line's name of a field: ``--gpus``. The Makefile's is the same in capitals: ``GPUS``."""
    return "--" + (f.metadata["flag"] or f.name).replace("_", "-")


def variable_of(f: dataclasses.Field) -> str:
    """The Makefile's name of a field, used in messages: ``GPUS``."""
    return (f.metadata["flag"] or f.name).upper()


def check_value(f: dataclasses.Field, value) -> None:
    """Raise UserError when a value is not of its field's type, choices or range. None is always allowed."""
    if value is None:
        return
    meta, name = f.metadata, variable_of(f)
    if meta["choices"] and value not in meta["choices"]:
        raise UserError(f"unknown {name}={value}: choose one of {', '.join(meta['choices'])}")
    if meta["min"] is not None and not value >= meta["min"]:
        raise UserError(f"{name}={value} is too small: at least {meta['min']}")
    if meta["above"] is not None and not value > meta["above"]:
        raise UserError(f"{name}={value} must be above {meta['above']}")
    if (isinstance(value, float) and value != value) or value in (float("inf"), float("-inf")):
        raise UserError(f"{name}={value} is not a finite number")


def check_launcher(config: RunConfig) -> None:
    """Raise UserError when the launcher cannot start this mode, or the rendezvous cannot serve the launcher."""
    allowed = MODES[config.mode].launchers
    if config.launcher != "auto" and config.launcher not in allowed:
        raise UserError(f"LAUNCHER={config.launcher} cannot start MODE={config.mode}: use {' or '.join(allowed)}")
    if config.share_gpu and MODES[config.mode].one_process:
        raise UserError(f"SHARE_GPU=1 is for modes of several processes, and MODE={config.mode} is one: leave it out")
    if config.dist_url is None:
        return
    if "torchrun" not in allowed:
        raise UserError(f"DIST_URL is for modes that rendezvous through torch.distributed, not MODE={config.mode}")
    if not re.fullmatch(r"tcp://[^:/]+:\d+|file:///.+", config.dist_url):
        raise UserError(f"DIST_URL={config.dist_url}: write tcp://HOST:PORT or file:///PATH")
    port = config.dist_url.rpartition(":")[2]
    if config.dist_url.startswith("tcp:") and not 0 < int(port) < 65536:
        raise UserError(f"DIST_URL={config.dist_url}: a port lies between 1 and 65535")
    if config.dist_url.startswith("file:") and config.launcher not in ("auto", "spawn"):
        raise UserError("a file:// DIST_URL needs LAUNCHER=spawn: torchrun brings its own rendezvous")


def check_knobs(config: RunConfig) -> None:
    """Raise UserError when an option of an engine is given to a mode that has no such thing."""
    mine = MODES[config.mode].knobs
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if value == f.default or f.name not in KNOBS:
            continue
        owners = [name for name, info in MODES.items() if f.name in info.knobs]
        if f.name not in mine:
            raise UserError(f"{variable_of(f)} is an option of MODE={' and '.join(owners)}, not of {config.mode}")
    if config.compression not in ("none", *mine.get("compression", ())):
        allowed = ", ".join(("none", *mine["compression"]))
        raise UserError(f"MODE={config.mode} has no COMPRESSION={config.compression}: choose one of {allowed}")
    if not config.overlap and config.compression != "none":
        raise UserError("OVERLAP=0 sends plain gradients after the backward pass: leave COMPRESSION out")
    if config.adasum and not (config.overlap and config.sync):
        raise UserError("ADASUM=1 is a reduction of its own: leave OVERLAP and SYNC out")
    if config.storage_ms and config.data == "synthetic":
        raise UserError("STORAGE_MS is a wait in the loader, and DATA=synthetic has none: use DATA=digits")


def check_batch(config: RunConfig) -> None:
    """Raise UserError when one step would need more images than the data set has."""
    if config.global_batch > DIGITS_TRAIN_IMAGES:
        raise UserError(
            f"BATCH={config.per_device_batch} on {config.num_devices} devices needs {config.global_batch} images a "
            f"step, and DATA=digits has {DIGITS_TRAIN_IMAGES}: use "
            f"BATCH={DIGITS_TRAIN_IMAGES // config.num_devices} or less, or DATA=synthetic"
        )


def parse_fault(text: str, num_processes: int) -> tuple[str, int, int]:
    """``kill:1:3`` -> ("kill", rank 1, step 3). Raise UserError for anything else."""
    match = re.fullmatch(rf"({'|'.join(FAULT_KINDS)}):(\d+):(\d+)", text)
    if not match or int(match[2]) >= num_processes:
        raise UserError(
            f"FAULT={text}: write raise|kill|hang:RANK:STEP, as in kill:0:3, with RANK below {num_processes}, the "
            "processes that this MODE and GPUS give"
        )
    return match[1], int(match[2]), int(match[3])


def parse_snapshots(text: str) -> list[int]:
    """``1,5,20`` -> [1, 5, 20]. Raise UserError for anything else."""
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise UserError(f"SNAPSHOTS={text}: write steps with commas between, as in 1,5,20")
    return [int(step) for step in text.split(",")]


# Defaults by device. A CPU laptop finishes a run in seconds; a GPU gets the workload of the field.
DEFAULTS = {
    "cpu": {"model": "resnet18", "data": "digits", "image_size": 16, "per_device_batch": 32, "warmup_steps": 3,
            "timed_steps": 10, "baselines": True},
    "cuda": {"model": "resnet50", "data": "synthetic", "image_size": 224, "per_device_batch": 64, "warmup_steps": 20,
             "timed_steps": 100, "baselines": False},
}  # fmt: skip

# TUNED=1: a larger batch per device gives each all-reduce more computation to be paid by (its cost does not grow
# with the batch). The engines' own settings are in bench/modes/__init__.py.
TUNED_BATCH = {"cpu": 256, "cuda": 256}


def resolve(config: RunConfig, device: str, usable_cores: int) -> RunConfig:
    """Fill in every option that was left open.

    device: "cpu" or "cuda", what the run will really use. usable_cores: CPU cores this process may run on.
    Raises UserError when a default makes the config impossible (a batch larger than the data).
    """
    defaults = dict(DEFAULTS[device])
    if config.tuned:
        most = DIGITS_TRAIN_IMAGES // config.num_devices if device == "cpu" else TUNED_BATCH[device]
        defaults["per_device_batch"] = min(TUNED_BATCH[device], most)
    changes = {name: value for name, value in defaults.items() if getattr(config, name) is None}
    changes |= tuned_options(config, config.mode)
    changes["device"] = device
    changes["threads"] = config.threads or usable_cores
    if config.launcher == "auto":
        file_url = config.dist_url and config.dist_url.startswith("file:")
        changes["launcher"] = "spawn" if file_url else MODES[config.mode].launchers[0]
    return dataclasses.replace(config, **changes)


def tuned_options(config: RunConfig, mode: str) -> dict:
    """What TUNED=1 sets for a mode, less what the user has set otherwise; nothing without it."""
    tuned = MODES[mode].tuned if config.tuned else {}
    return {name: value for name, value in tuned.items() if getattr(config, name) == UNSET[name]}


def base_type(f: dataclasses.Field) -> type:
    """``int | None`` -> int: the type in which a value of this field is written."""
    return next(t for t in (bool, int, float, str) if t is f.type or t in getattr(f.type, "__args__", ()))


def parse_value(f: dataclasses.Field, text: str):
    """The value of an option as written by a person. Raises UserError when it is not of the option's type."""
    kind = base_type(f)
    if kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off", ""):
            return False
        raise UserError(f"{variable_of(f)}={text}: write 1 or 0")
    try:
        return kind(text)
    except ValueError:
        word = "whole number" if kind is int else "number"
        raise UserError(f"{variable_of(f)}={text} is not a {word}") from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser one flag for each field. Values stay text until ``from_arguments`` reads them."""
    group = parser.add_argument_group("the run (in make: the same names in capitals, GPUS=4)")
    for f in dataclasses.fields(RunConfig):
        choices = f"; one of {', '.join(f.metadata['choices'])}" if f.metadata["choices"] else ""
        default = f" [{f.default}]" if f.default is not None and f.default is not False else ""
        switch = {"nargs": "?", "const": "1"} if base_type(f) is bool else {}
        group.add_argument(
            flag_of(f),
            dest=f.name,
            metavar=variable_of(f),
            help=f.metadata["help"] + choices + default,
            **switch,
        )


def from_arguments(args: argparse.Namespace) -> RunConfig:
    """Read the flags that were given. Raises UserError naming the first bad one."""
    given = {}
    for f in dataclasses.fields(RunConfig):
        text = getattr(args, f.name, None)
        if text is not None:
            given[f.name] = parse_value(f, text)
    return RunConfig(**given)


def to_dict(config: RunConfig) -> dict:
    """The record's ``config`` field."""
    return dataclasses.asdict(config)


def from_dict(values: dict) -> RunConfig:
    """The opposite of ``to_dict``. Raises UserError on a name that is not an option."""
    unknown = set(values) - {f.name for f in dataclasses.fields(RunConfig)}
    if unknown:
        raise UserError(f"unknown options in config: {', '.join(sorted(unknown))}")
    return RunConfig(**values)


def make_command(config: RunConfig) -> str:
    """The make command that repeats this run: only what differs from the defaults is named."""
    words = [
        f"{variable_of(f)}={int(v) if isinstance(v, bool) else v}"
        for f in dataclasses.fields(config)
        if (v := getattr(config, f.name)) != f.default and f.name not in ("out", *LABELS)
    ]
    return " ".join(["make bench", *words])
