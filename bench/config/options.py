"""RunConfig: the one description of a run.

A flat, frozen, validated dataclass. The flags of the command line, the variables of the Makefile and the
``config`` field of a record are all derived from its fields; nothing else defines an option. It imports no torch.

What comes in: what a person typed. What goes out: a config in which every ``None`` has been replaced by a default
that suits the device (``resolve``), or a ``UserError`` that names the option and says what to do.
"""

import argparse
import dataclasses
from dataclasses import dataclass, field

from bench.config import rules as checks
from bench.config.modes import LAUNCHERS, MODES
from bench.errors import UserError
from bench.mistakes import INJECTED
from bench.training.schedule import SCHEDULES

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
NORMS = ("batch", "group", "none", "sync")
OPTIMIZERS = ("sgd", "adam", "adamw")
TRACKERS = ("none", "tensorboard", "wandb")
DEVICES = ("auto", "cpu", "cuda")
COMPRESSIONS = ("none", "fp16", "bf16", "powersgd")
CACHE = "~/.cache/data-parallel-bench/data"

# Every option that only some modes have: the union of the table's.
KNOBS = {name for info in MODES.values() for name in info.knobs}


# What kind of thing an option is. Every list of options in the house is made from this, by ``names``.
PARTS = {
    "mode": "the data-parallel pattern, and on how many of which devices",
    "model": "the network and its first weights",
    "data": "the examples, and how they are read",
    "recipe": "the arithmetic of the training: batch, optimizer, schedule, precision, seed",
    "engine": "how the mode carries out that arithmetic: buckets, exchange, memory order, compiler",
    "injected": "a mistake or a fault, on purpose",
    "measuring": "what is measured and recorded",
    "resources": "what this machine gives to the run, and for how long",
    "files": "where files are read from and written to",
    "besides": "what is done beside the steps, and changes none of them",
    "labels": "where the run belongs, not what it does",
}
WORK = ("model", "data", "recipe", "measuring")  # what is computed and measured
PROGRAM = ("mode", "engine", "injected")  # which program computes it


def option(part, default, help, flag=None, choices=None, minimum=None, exclusive_minimum=None, path=False):
    """A field of RunConfig with what the command line and the checks need to know of it.

    part: one of PARTS. path: whether its value names a place on this machine.
    """
    meta = {"part": part, "help": help, "flag": flag, "choices": choices, "min": minimum, "above": exclusive_minimum}
    return field(default=default, metadata=meta | {"path": path})


def names(*parts: str) -> list[str]:
    """The options of these parts, in the order of RunConfig's fields.

    >>> names("labels")
    ['suite', 'role', 'round']
    """
    return [f.name for f in dataclasses.fields(RunConfig) if f.metadata["part"] in parts]


@dataclass(frozen=True)
class RunConfig:
    """One run. ``None`` means: choose by device; ``resolve`` fills it in."""

    mode: str = option("mode", "ddp", "the data-parallel pattern, or the baseline 'independent'", choices=tuple(MODES))
    num_devices: int = option("mode", 1, "GPUs to use; on a machine without GPUs, CPU workers", flag="gpus", minimum=1)
    model: str | None = option("model", None, "torchvision classification model (cpu: resnet18, gpu: resnet50)")
    data: str | None = option(
        "data",
        None,
        "digits, synthetic, fashionmnist, cifar10, imagefolder:PATH, tar:PATH, or a URL as s3://BUCKET/PREFIX "
        "(cpu: digits, gpu: synthetic)",
    )
    image_size: int | None = option(
        "data", None, "pixels a side (by data; digits 16, photographs cpu 64, gpu 224)", minimum=8
    )
    per_device_batch: int | None = option(
        "recipe", None, "images per device per forward pass (cpu: 32, gpu: 64)", flag="batch", minimum=1
    )
    accumulate: int = option(
        "recipe", 1, "forward and backward passes a step: the global batch is BATCH x devices x this", minimum=1
    )
    warmup_steps: int | None = option(
        "measuring", None, "untimed steps first (cpu: 3, gpu: 20)", flag="warmup", minimum=0
    )
    timed_steps: int | None = option("measuring", None, "timed steps (cpu: 10, gpu: 100)", flag="steps", minimum=1)
    epochs: int = option("recipe", 0, "train so many epochs instead, and validate after each", minimum=0)
    lr: float = option("recipe", 0.05, "learning rate", exclusive_minimum=0)
    momentum: float = option("recipe", 0.9, "momentum of sgd", minimum=0)
    nesterov: bool = option("recipe", False, "sgd with Nesterov's momentum")
    weight_decay: float = option("recipe", 0.0, "weight decay", minimum=0)
    optimizer: str = option("recipe", "sgd", "the optimizer", choices=OPTIMIZERS)
    schedule: str = option("recipe", "constant", "how the learning rate falls", choices=SCHEDULES)
    schedule_epochs: float = option(
        "recipe", 30.0, "step: epochs between two falls; cyclic: of a cycle", exclusive_minimum=0
    )
    schedule_factor: float = option(
        "recipe", 0.1, "step: what a fall multiplies by; cyclic: lowest over highest", exclusive_minimum=0
    )
    lr_batch: int | None = option(
        "recipe", None, "LR is meant for this global batch: scaled linearly to the run's", minimum=1
    )
    lr_warmup_steps: int = option("recipe", 0, "linear warm-up of the learning rate over so many steps", minimum=0)
    lr_warmup_epochs: float = option("recipe", 0.0, "the same in epochs", minimum=0)
    clip_norm: float | None = option("recipe", None, "clip the gradient's norm to this", exclusive_minimum=0)
    loss_guard: float | None = option(
        "recipe",
        None,
        "all ranks skip a step whose loss is not finite, or above this many times its running mean",
        exclusive_minimum=1,
    )
    norm: str = option(
        "model",
        "batch",
        "'group': group norm of up to 8 groups, each image for itself; 'none': every batch norm becomes a scale and a "
        "shift; 'sync': over the global batch",
        choices=NORMS,
    )
    precision: str = option("recipe", "fp32", "arithmetic of the step; fp16 scales the loss", choices=PRECISIONS)
    allow_slow: bool = option(
        "resources", False, "run a precision for which this CPU has no instructions (6 to 40 times slower)"
    )
    channels_last: bool = option("engine", False, "images and weights in memory as N H W C")
    compile: bool = option("engine", False, "torch.compile the model")
    pretrained: str | None = option("model", None, "start from these weights: a file, or 'torchvision'", path=True)
    freeze: str | None = option("model", None, "do not train parameters of these names, as in conv1*,layer1*")
    train_only: str | None = option("model", None, "train no parameters but those of these names, as in fc*")
    trust: bool = option("files", False, "read a weights file that may run code of its maker's")
    augment: bool | None = option("data", None, "random crops and flips in training (digits, synthetic: 0; others: 1)")
    in_memory: bool | None = option("data", None, "decode every image once and hold it (by size)")
    skip_bad: bool = option(
        "data", False, "leave out images that cannot be read, and count them; without it they are an error"
    )
    data_dir: str = option("files", CACHE, "where data sets are looked for, downloaded and staged", path=True)
    checkpoint: bool | None = option("besides", None, "write checkpoints after every epoch (with EPOCHS: 1)")
    checkpoint_steps: int | None = option("besides", None, "and after every so many steps", minimum=1)
    resume: str | None = option(
        "files", None, "go on from a checkpoint: a file, a run's folder, or a folder of runs", path=True
    )
    evaluate: bool = option("besides", False, "only validate, with the weights of RESUME or PRETRAINED")
    target: float | None = option(
        "besides", None, "top-1 accuracy to take the time to, as in 0.98", exclusive_minimum=0
    )
    track: str = option("besides", "none", "log to a tracker, offline (rank 0)", choices=TRACKERS)
    copy_to: str | None = option("besides", None, "URL to which the run's folder is copied at the end", path=True)
    seed: int = option("recipe", 0, "seed of weights, of data order and of augmentation", minimum=0)
    workers: int | None = option(
        "data",
        None,
        "data loader workers in TOTAL, shared out over the processes (files: one a process, gpu: one a core)",
        minimum=0,
    )
    threads: int | None = option("resources", None, "CPU threads in TOTAL (default: the usable cores)", minimum=1)
    launcher: str = option(
        "engine", "auto", "how the processes are started (ddp: torchrun or spawn)", choices=("auto", *LAUNCHERS)
    )
    dist_url: str | None = option("resources", None, "rendezvous: tcp://HOST:PORT, or file:///PATH (spawn only)")
    device: str = option("mode", "auto", "auto: GPUs where there are any", choices=DEVICES)
    share_gpu: bool = option("mode", False, "all ranks on ONE GPU, over Gloo: for learning, not for speed")
    tuned: bool = option("engine", False, "engine settings and batch that hide communication (see README)")
    # The engines' own options: the table in bench/modes says which mode has which.
    bucket_cap_mb: float | None = option("engine", None, "ddp: MiB of gradients a bucket (25)", exclusive_minimum=0)
    gradient_as_bucket_view: bool = option("engine", False, "ddp: gradients live in their buckets")
    static_graph: bool = option("engine", False, "ddp: the graph is the same every step")
    broadcast_buffers: bool = option("engine", True, "ddp: rank 0's buffers are sent to all before each forward")
    overlap: bool = option("engine", True, "0: every reduction after the whole backward pass")
    compression: str = option("engine", "none", "gradients on the wire (powersgd: ddp alone)", choices=COMPRESSIONS)
    fusion_mb: float | None = option("engine", None, "horovod: MiB of the fusion buffer (128)", minimum=0)
    cycle_time_ms: float | None = option(
        "engine", None, "horovod: ms between two looks for work (1)", exclusive_minimum=0
    )
    autotune: bool = option("engine", False, "horovod: let it choose fusion and cycle while it runs")
    adasum: bool = option("engine", False, "horovod: Adasum instead of the mean (needs a Horovod with MPI)")
    sync: bool = option("engine", True, "0: no gradient is exchanged; the step without its communication, not training")
    init_sync: bool = option("engine", True, "0: the replicas are not made equal at the start: a mistake to study")
    # Switches to study with.
    step_barrier: bool = option("engine", False, "an unfairness to study: a barrier and three reductions every step")
    item_sync: bool = option("engine", False, "an unfairness to study: loss.item() every step")
    storage_ms: float = option("data", 0.0, "simulated wait for storage in the loader, ms an image", minimum=0)
    mistake: str = option(
        "injected", "none", "a known mistake, made on purpose (`bench lab`)", choices=("none", *INJECTED)
    )
    watch: bool = option(
        "measuring", False, "watch the run for the known mistakes, as `bench check` does; slows its untimed steps"
    )
    replicas: bool = option(
        "measuring", False, "record how far apart the replicas are after every step, and how good each is alone"
    )
    profile: bool = option("measuring", False, "torch.profiler round one more step: its timeline goes into the record")
    baselines: bool | None = option("besides", None, "also run the two baselines (cpu: 1, gpu: 0)")
    timeout: float = option(
        "resources", 900.0, "seconds without progress after which the run is ended", exclusive_minimum=0
    )
    out: str = option("files", "results/runs", "folder for run folders", path=True)
    snapshots: str | None = option(
        "measuring", None, "save weights after these steps, as in 1,5,20 (what verify compares)"
    )
    fault: str | None = option("injected", None, "break it on purpose: raise|kill|hang:RANK:STEP, as in kill:1:3")
    suite: str | None = option("labels", None, "label: the suite this run belongs to")
    role: str | None = option("labels", None, "label: what this run is in its suite")
    round: int | None = option("labels", None, "label: the round of its suite", minimum=0)

    def __post_init__(self):
        for f in dataclasses.fields(self):
            checks.check_value(f, getattr(self, f.name))
        checks.check(self, KNOBS)

    @property
    def global_batch(self) -> int:
        """Images per step over all devices."""
        return global_batch_of(vars(self))

    @property
    def num_processes(self) -> int:
        """Processes that train: one a device, or one in all for single and dp."""
        return 1 if MODES[self.mode].one_process else self.num_devices


def global_batch_of(config: dict) -> int:
    """Images per step over all devices, of a config as a dict.

    >>> global_batch_of({"per_device_batch": 32, "accumulate": 2, "num_devices": 4})
    256
    """
    return config["per_device_batch"] * config["accumulate"] * config["num_devices"]


# What every option is when nobody gives it.
UNSET = {f.name: f.default for f in dataclasses.fields(RunConfig)}


# Defaults by device. A CPU laptop finishes a run in seconds; a GPU gets the workload of the field.
DEFAULTS = {
    "cpu": {"model": "resnet18", "data": "digits", "per_device_batch": 32, "warmup_steps": 3, "timed_steps": 10,
            "baselines": True},
    "cuda": {"model": "resnet50", "data": "synthetic", "per_device_batch": 64, "warmup_steps": 20, "timed_steps": 100,
             "baselines": False},
}  # fmt: skip
IMAGE_SIZES = {"digits": 16, "fashionmnist": 28, "cifar10": 32}  # the data's own, but for digits, which have 8
OTHER_SIZE = {"cpu": 64, "cuda": 224}  # photographs
SYNTHETIC_SIZE = {"cpu": 16, "cuda": 224}

# TUNED=1: a larger batch per device gives each all-reduce more computation to be paid by (its cost does not grow
# with the batch). The engines' own settings are in bench/config/modes.py.
TUNED_BATCH = {"cpu": 256, "cuda": 256}

# What `bench accuracy` trains where the user says nothing: the digits at their own size, half a minute to a minute a
# run on two CPU cores. A recipe is for one global batch, so that is shared out to the devices.
ACCURACY = {"model": "resnet18", "data": "digits", "image_size": 8, "epochs": 12, "lr": 0.05, "lr_warmup_epochs": 1.0,
            "schedule": "cosine", "weight_decay": 5e-4, "augment": True, "target": 0.98}  # fmt: skip
# What `bench unsynced-init` trains: a network of 1.3 million weights, so that sixty short trainings take a quarter of
# an hour on two CPU cores. No decay: the replicas keep the distance that they start with.
UNSYNCED = {"num_devices": 2, "model": "shufflenet_v2_x1_0", "data": "digits", "image_size": 32, "epochs": 3,
            "lr": 0.02, "lr_warmup_epochs": 0.25, "schedule": "cosine", "augment": True, "replicas": True}  # fmt: skip
RECIPE_GLOBAL_BATCH = 64  # of both
# What every `bench lab` trains: seconds a run on two CPU cores, most of them to start. Some labs need another workload
# for their mistake to be seen: bench/studies/lab/study.py.
LAB = {"model": "resnet18", "data": "digits", "image_size": 8, "num_devices": 2, "lr": 0.02, "per_device_batch": 120,
       "epochs": 2}  # fmt: skip


def resolve(config: RunConfig, device: str, usable_cores: int) -> RunConfig:
    """Fill in every option that was left open.

    device: "cpu" or "cuda", what the run will really use. usable_cores: CPU cores this process may run on.
    Raises UserError when a default makes the config impossible (a batch larger than the data).
    """
    defaults = dict(DEFAULTS[device])
    kind = checks.data_kind(config.data or defaults["data"])[0]
    if config.tuned:
        most = checks.DIGITS_TRAIN_IMAGES // (config.num_devices * config.accumulate)
        defaults["per_device_batch"] = min(TUNED_BATCH[device], most if kind == "digits" else TUNED_BATCH[device])
    files = kind not in checks.IN_MEMORY_SETS
    defaults |= {
        "image_size": SYNTHETIC_SIZE[device] if kind == "synthetic" else IMAGE_SIZES.get(kind, OTHER_SIZE[device]),
        "workers": (usable_cores if device == "cuda" else config.num_processes) if files else 0,
        "augment": kind not in ("digits", "synthetic"),
        "checkpoint": config.epochs > 0 and not MODES[config.mode].baseline,
        "threads": usable_cores,
    }
    changes = {name: value for name, value in defaults.items() if getattr(config, name) is None}
    changes |= tuned_options(config, config.mode)
    changes["device"] = device
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
        raise UserError(f"{checks.variable_of(f)}={text}: write 1 or 0")
    try:
        return kind(text)
    except ValueError:
        word = "whole number" if kind is int else "number"
        raise UserError(f"{checks.variable_of(f)}={text} is not a {word}") from None


def add_arguments(parser: argparse.ArgumentParser, own: dict | None = None) -> None:
    """Give a parser one flag for each field. Values stay text until ``from_arguments`` reads them.

    own: option -> what it is for this command where nobody gives it.
    """
    own = own or {}
    group = parser.add_argument_group("the run (in make: the same names in capitals, GPUS=4)")
    for f in dataclasses.fields(RunConfig):
        choices = f"; one of {', '.join(f.metadata['choices'])}" if f.metadata["choices"] else ""
        value = own.get(f.name, f.default)
        default = f" [{value}]" if value is not None and value is not False else ""
        switch = {"nargs": "?", "const": "1"} if base_type(f) is bool else {}
        group.add_argument(
            checks.flag_of(f),
            dest=f.name,
            metavar=checks.variable_of(f),
            default=str(own[f.name]) if f.name in own else None,
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
        f"{checks.variable_of(f)}={int(v) if isinstance(v, bool) else v}"
        for f in dataclasses.fields(config)
        if (v := getattr(config, f.name)) != f.default and f.name not in ("out", *names("labels"))
    ]
    return " ".join(["make bench", *words])
