"""RunConfig: the one description of a run.

A flat, frozen, validated dataclass. The flags of the command line, the variables of the Makefile and the ``config`` of
a record are all derived from its fields; nothing else defines an option. It imports no torch.

What comes in: what a person typed. What goes out: a config in which every ``None`` has been replaced by a default that
suits the device (``resolve``), or a ``UserError`` that names the option and says what to do.
"""

import dataclasses
from dataclasses import dataclass

from bench import mistakes
from bench.config import data_sets, fields, rules
from bench.config.fields import option
from bench.config.modes import LAUNCHERS, MODES
from bench.errors import UserError

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
NORMS = ("batch", "group", "none", "sync")
OPTIMIZERS = ("sgd", "adam", "adamw")
TRACKERS = ("none", "tensorboard", "wandb")
DEVICES = ("auto", "cpu", "cuda")
AVERAGES = ("ema", "swa")  # of the weights, kept beside those that are trained
COMPRESSIONS = ("none", "fp16", "bf16", "powersgd")
CACHE = "~/.cache/data-parallel-bench/data"

# Every option that only some modes have: the union of the table's.
KNOBS = {name for info in MODES.values() for name in info.knobs}


@dataclass(frozen=True)
class RunConfig:
    """One run. ``None`` means: choose by device; ``resolve`` fills it in."""

    # mode: which pattern, on how many of which devices
    mode: str = option("mode", "ddp", "the data-parallel pattern, or the baseline 'independent'", choices=tuple(MODES))
    num_devices: int = option(
        "mode", 1, "how many GPUs: the first visible ones; on a machine without GPUs, CPU workers. Or which GPUs, by "
        "nvidia-smi's number or UUID: 0,1 or GPU-3f2a,GPU-77b0; a single one as 3,", flag="gpus", minimum=1,
    )  # fmt: skip
    device: str = option("mode", "auto", "auto: GPUs where there are any", choices=DEVICES)
    share_gpu: bool = option("mode", False, "all ranks on ONE GPU, over Gloo: for learning, not for speed")

    # model
    model: str | None = option("model", None, "torchvision classification model (cpu: resnet18, gpu: resnet50)")
    norm: str = option(
        "model", "batch", "'group': group norm of up to 8 groups, each image for itself; 'none': every batch norm "
        "becomes a scale and a shift; 'sync': over the global batch", choices=NORMS,
    )  # fmt: skip
    bn_momentum: float | None = option(
        "model", None, "momentum of batch norm's running statistics: the newest batch's share (0.1)",
        exclusive_minimum=0,
    )  # fmt: skip
    pretrained: str | None = option(
        "model", None, "start from these weights: a file, one key of it as in a.pt#ema, or 'torchvision'", path=True
    )
    freeze: str | None = option("model", None, "do not train parameters of these names, as in conv1*,layer1*")
    train_only: str | None = option("model", None, "train no parameters but those of these names, as in fc*")

    # data
    data: str | None = option("data", None, f"{', '.join(data_sets.choices())} (cpu: digits, gpu: synthetic)")
    val_labels: str | None = option(
        "data",
        None,
        "labels file of a val without class folders, as ImageNet's (by name, in the data's folder)",
        path=True,
    )
    image_size: int | None = option(
        "data", None, "pixels per side (by data; digits 16, photographs cpu 64, gpu 224)", minimum=8
    )
    augment: bool | None = option("data", None, "random crops and flips in training (digits, synthetic: 0; others: 1)")
    in_memory: bool | None = option("data", None, "decode every image once and hold it (by size)")
    skip_bad: bool = option(
        "data", False, "leave out images that cannot be read, and count them; without it they are an error"
    )
    workers: int | None = option(
        "data", None, "data loader workers in TOTAL, shared out over the processes (files: one per process, gpu: one "
        "per core)", minimum=0,
    )  # fmt: skip
    storage_ms: float = option("data", 0.0, "simulated wait for storage in the loader, ms per image", minimum=0)

    # recipe: the arithmetic of the training
    per_device_batch: int | None = option(
        "recipe", None, "images per device per forward pass (cpu: 32, gpu: 64)", flag="batch", minimum=1
    )
    accumulate: int = option(
        "recipe", 1, "forward and backward passes per step: the global batch is BATCH x devices x this", minimum=1
    )
    epochs: int = option("recipe", 0, "train this many epochs instead, and validate after each", minimum=0, trains=True)
    lr: float = option("recipe", 0.05, "learning rate", exclusive_minimum=0)
    momentum: float = option("recipe", 0.9, "momentum of sgd", minimum=0)
    nesterov: bool = option("recipe", False, "sgd with Nesterov's momentum")
    weight_decay: float = option("recipe", 0.0, "weight decay", minimum=0)
    optimizer: str = option("recipe", "sgd", "the optimizer", choices=OPTIMIZERS)
    fused: bool = option("recipe", False, "torch's fused optimizer: the whole step in few kernels")
    schedule: str = option(
        "recipe", "constant", f"learning-rate schedule: {', '.join(rules.SCHEDULES)}; step:30,60,80 drops after these "
        "epochs",
    )  # fmt: skip
    schedule_epochs: float = option(
        "recipe", 30.0, "step: epochs between two drops; cyclic, sawtooth: epochs per cycle", exclusive_minimum=0
    )
    schedule_factor: float = option(
        "recipe",
        0.1,
        "step: factor of a drop; cyclic, sawtooth: lowest over highest learning rate",
        exclusive_minimum=0,
    )
    lr_batch: int | None = option(
        "recipe", None, "the global batch that LR is meant for: LR is scaled linearly to the run's", minimum=1
    )
    lr_warmup_steps: int = option("recipe", 0, "linear warm-up of the learning rate over this many steps", minimum=0)
    lr_warmup_epochs: float = option("recipe", 0.0, "the same in epochs", minimum=0, trains=True)
    clip_norm: float | None = option("recipe", None, "clip the gradient's norm to this", exclusive_minimum=0)
    loss_guard: float | None = option(
        "recipe", None, "all ranks skip a step whose loss is not finite, or above this many times its running mean",
        exclusive_minimum=1,
    )  # fmt: skip
    ema: float | None = option(
        "recipe", None, "keep an exponential moving average of the weights, too: its decay per step, as in 0.999",
        exclusive_minimum=0, trains=True,
    )  # fmt: skip
    swa: int | None = option(
        "recipe", None, "keep the mean of the weights after this epoch and each after it, too (SWA)", minimum=1,
        trains=True,
    )  # fmt: skip
    precision: str = option("recipe", "fp32", "arithmetic of the step; fp16 scales the loss", choices=PRECISIONS)
    seed: int = option("recipe", 0, "seed of weights, of data order and of augmentation", minimum=0)

    # engine: how the mode carries that out. The table in bench/config/modes.py says which mode has which.
    launcher: str = option(
        "engine", "auto", "how the processes are started (ddp: torchrun or spawn)", choices=("auto", *LAUNCHERS)
    )
    tuned: bool = option("engine", False, "engine settings and batch that hide communication")
    channels_last: bool = option("engine", False, "images and weights in memory as N H W C")
    cudnn_benchmark: bool = option(
        "engine", False, "GPUs: cuDNN tries its algorithms at the first steps and keeps the fastest"
    )
    compile: bool = option("engine", False, "torch.compile the model")
    bucket_cap_mb: float | None = option("engine", None, "ddp: bucket size in MiB (25)", exclusive_minimum=0)
    gradient_as_bucket_view: bool = option("engine", False, "ddp: gradients are views of their buckets")
    static_graph: bool = option("engine", False, "ddp: the graph is the same every step")
    broadcast_buffers: bool = option("engine", True, "ddp: rank 0's buffers are sent to all before each forward")
    overlap: bool = option("engine", True, "0: every reduction after the whole backward pass")
    compression: str = option("engine", "none", "gradient compression (powersgd: ddp alone)", choices=COMPRESSIONS)
    fusion_mb: float | None = option(
        "engine", None, "horovod: fusion buffer in MiB, HOROVOD_FUSION_THRESHOLD (128)", minimum=0
    )
    cycle_time_ms: float | None = option(
        "engine", None, "horovod: cycle time in ms, HOROVOD_CYCLE_TIME (1)", exclusive_minimum=0
    )
    autotune: bool = option("engine", False, "horovod: autotune fusion and cycle time, HOROVOD_AUTOTUNE")
    async_completion: bool = option(
        "engine", False, "horovod on GPUs: the host does not wait for a reduction, HOROVOD_ENABLE_ASYNC_COMPLETION"
    )
    adasum: bool = option("engine", False, "horovod: Adasum instead of the mean (needs a Horovod with MPI)")
    sync: bool = option("engine", True, "0: no gradient is exchanged; the step without its communication, not training")
    init_sync: bool = option("engine", True, "0: the replicas are not made equal at the start: a mistake to study")
    step_barrier: bool = option("engine", False, "an unfairness to study: a barrier and three reductions every step")
    item_sync: bool = option("engine", False, "an unfairness to study: loss.item() every step")

    # injected: on purpose
    mistake: str = option(
        "injected", "none", "a known mistake, made on purpose (`bench lab`)", choices=("none", *mistakes.INJECTED)
    )
    fault: str | None = option("injected", None, "fault injection: raise|kill|hang:RANK:STEP, as in kill:1:3")

    # measuring
    warmup_steps: int | None = option(
        "measuring", None, "untimed steps first (cpu: 3, gpu: 20)", flag="warmup", minimum=0
    )
    timed_steps: int | None = option("measuring", None, "timed steps (cpu: 10, gpu: 100)", flag="steps", minimum=1)
    val_batch: int | None = option(
        "measuring", None, "images per device per forward pass of a validation (BATCH)", minimum=1, trains=True
    )
    profile: bool = option("measuring", False, "torch.profiler around one more step: its timeline goes into the record")
    watch: bool = option(
        "measuring", False, "watch the run for the known mistakes, as `bench check` does; slows its untimed steps"
    )
    replicas: bool = option(
        "measuring", False, "record the distance between the replicas after every step, and each one's accuracy"
    )
    snapshots: str | None = option(
        "measuring", None, "save weights after these steps, as in 1,5,20 (what verify compares)"
    )

    # resources
    threads: int | None = option("resources", None, "CPU threads in TOTAL (default: the usable cores)", minimum=1)
    timeout: float = option(
        "resources", 900.0, "seconds without progress after which the run is ended", exclusive_minimum=0
    )
    allow_slow: bool = option(
        "resources", False, "run a precision for which this CPU has no instructions (6 to 40 times slower)"
    )
    gpu_ids: str | None = option(
        "resources", None, "the GPUs that GPUS names, as in 0,1 or 3, or UUIDs", flag="gpus", within="num_devices"
    )
    dist_url: str | None = option("resources", None, "rendezvous: tcp://HOST:PORT, or file:///PATH (spawn only)")

    # files
    out: str = option("files", "results/runs", "folder for run folders", path=True)
    data_dir: str = option("files", CACHE, "where data sets are looked for, downloaded and staged", path=True)
    resume: str | None = option(
        "files", None, "resume from a checkpoint: a file, a run's folder, or a folder of runs", path=True, trains=True
    )
    trust: bool = option("files", False, "read a weights file that can execute code (pickle)")

    # besides the steps
    print_every: int | None = option(
        "besides", None, "a line of progress every so many steps (default: every 5 s and 20th of the steps)", minimum=1
    )
    evaluate: bool = option("besides", False, "only validate, with the weights of RESUME or PRETRAINED", trains=True)
    target: float | None = option(
        "besides", None, "measure the time to this top-1 accuracy, as in 0.98", exclusive_minimum=0, trains=True
    )
    baselines: bool | None = option("besides", None, "also run the two baselines (cpu: 1, gpu: 0)")
    checkpoint: bool | None = option(
        "besides", None, "write checkpoints after every epoch (with EPOCHS: 1)", trains=True
    )
    checkpoint_steps: int | None = option(
        "besides", None, "and a checkpoint every this many steps", minimum=1, trains=True
    )
    keep: str | None = option(
        "besides", None, "keep the epochs' own checkpoints, too: 'all', or the newest n", trains=True
    )
    track: str = option("besides", "none", "log to a tracker, offline (rank 0)", choices=TRACKERS, trains=True)
    copy_to: str | None = option(
        "besides", None, "URL to which the run's folder is copied at the end", path=True, trains=True
    )

    # labels
    study: str | None = option("labels", None, "label: the study that this run is part of")
    suite: str | None = option("labels", None, "label: the suite that this run belongs to")
    program: str | None = option("labels", None, "label: the program of its suite")
    variant: str | None = option("labels", None, "label: the part of the program in its suite, as in right, wrong")
    round: int | None = option("labels", None, "label: the round of its suite", minimum=0)
    looks: str | None = option(
        "labels", None, "label: the rounds after which its suite was to end if every pair had a verdict, as in 4,8,16"
    )
    limit_minutes: float | None = option(
        "labels", None, "label: after which time its suite was to end, whatever it had shown", exclusive_minimum=0
    )

    def __post_init__(self):
        for f in dataclasses.fields(self):
            fields.check_value(f, getattr(self, f.name))
        rules.check(self, KNOBS)

    @property
    def global_batch(self) -> int:
        """Examples per step over all devices."""
        return self.per_device_batch * self.accumulate * self.num_devices

    @property
    def num_processes(self) -> int:
        """Processes that train: one per device, or one in all for single and dp."""
        return 1 if MODES[self.mode].one_process else self.num_devices

    @property
    def threads_per_process(self) -> int:
        """The CPU threads of one process: its share of the total, at least one."""
        return max(1, self.threads // self.num_processes)


# What every option is when it is not given.
FIELDS = {f.name: f for f in dataclasses.fields(RunConfig)}
UNSET = {name: f.default for name, f in FIELDS.items()}


def names(*parts: str) -> list[str]:
    """The options of these parts, in the order of RunConfig's fields.

    >>> names("labels")
    ['study', 'suite', 'program', 'variant', 'round', 'looks', 'limit_minutes']
    """
    return [f.name for f in dataclasses.fields(RunConfig) if f.metadata["part"] in parts]


def of_training() -> list[str]:
    """The options of a training by epochs, which a run that only times steps does without."""
    return [f.name for f in dataclasses.fields(RunConfig) if f.metadata["trains"]]


def to_dict(config: RunConfig) -> dict:
    """The record's ``config`` field."""
    return dataclasses.asdict(config)


def from_dict(values: dict) -> RunConfig:
    """The opposite of ``to_dict``. Raises UserError on a name that is not an option."""
    unknown = set(values) - {f.name for f in dataclasses.fields(RunConfig)}
    if unknown:
        raise UserError(f"unknown options in config: {', '.join(sorted(unknown))}")
    return RunConfig(**values)


def unchecked(values: dict) -> RunConfig:
    """A config as a record has it, without the checks of what can be run today: to be read, not to be launched."""
    config = object.__new__(RunConfig)
    for f in dataclasses.fields(RunConfig):
        object.__setattr__(config, f.name, values.get(f.name, f.default))
    return config
