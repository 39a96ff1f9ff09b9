"""RunConfig: the one description of a run.

A flat, frozen, validated dataclass. The flags of the command line, the variables of the Makefile and the ``config`` of
a record are all derived from its fields; nothing else defines an option. It imports no torch.

What comes in: what a person typed. What goes out: a config in which every ``None`` has been replaced by a default that
suits the device (``resolve``), or a ``UserError`` that names the option and says what to do.
"""

import dataclasses
from dataclasses import dataclass

from bench import mistakes
from bench.config import data_sets, fields, own, rules, tasks
from bench.config.fields import option
from bench.config.hosts import SSH, Host, parse, share
from bench.config.modes import COMPILE_MODES, LAUNCHERS, MODES
from bench.config.tasks import TASKS
from bench.config.values import SCHEDULES
from bench.errors import UserError

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
SHORT = ("bf16", "fp16")  # of 16 bits
NORMS = ("batch", "group", "none", "sync")
OPTIMIZERS = ("sgd", "adam", "adamw")
TRACKERS = ("none", "tensorboard", "wandb")
DEVICES = ("auto", "cpu", "cuda")
DECODES = ("cpu", "cuda", "auto")
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
        "mode", 1, "how many GPUs: the first visible ones, or all; on a machine without GPUs, CPU workers. Or which "
        "GPUs, by nvidia-smi's number or UUID: 0,1 or GPU-3f2a,GPU-77b0; a single one as 3,", flag="gpus", minimum=1,
    )  # fmt: skip
    device: str = option("mode", "auto", "auto: GPUs where there are any", choices=DEVICES)
    share_gpu: bool = option("mode", False, "all ranks on ONE GPU: for learning, not for speed")

    # model
    model: str | None = option(
        "model", None, "torchvision classification model (cpu: resnet18, gpu: resnet50), timm:NAME, keras:NAME, gpt, "
        f"or your own as {own.FORM}",
    )  # fmt: skip
    layers: int | None = option("model", None, "gpt: blocks (cpu: 2, gpu: 12)", minimum=1)
    width: int | None = option("model", None, "gpt: numbers per token (cpu: 64, gpu: 768)", minimum=1)
    heads: int | None = option(
        "model", None, "gpt: heads of attention, a divisor of WIDTH (cpu: 2, gpu: 12)", minimum=1
    )
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
    context: int | None = option("data", None, "bytes in a sequence, for DATA=stdlib (cpu: 64, gpu: 1024)", minimum=2)
    augment: bool | None = option("data", None, "random crops and flips in training (digits, synthetic: 0; others: 1)")
    in_memory: bool | None = option("data", None, "decode every image once and hold it (by size)")
    skip_bad: bool = option(
        "data", False, "leave out images that cannot be read, and count them; without it they are an error"
    )
    decode: str = option(
        "data", "cpu", "where JPEGs are decoded: by the loader's workers, or on the GPU by torchvision's nvJPEG; auto: "
        "on the GPU where that works", choices=DECODES,
    )  # fmt: skip
    workers: int | None = option(
        "data", None, "data loader workers in TOTAL, shared out over the processes (files: one per process, gpu: one "
        "per core)", minimum=0,
    )  # fmt: skip
    storage_ms: float = option("data", 0.0, "simulated wait for storage in the loader, ms per image", minimum=0)

    # recipe: the arithmetic of the training
    per_device_batch: int | None = option(
        "recipe", None, "images per device per forward pass (cpu: 32, gpu: by its memory, 256 at most; with EPOCHS or "
        "PLAIN=1 64)", flag="batch", minimum=1,
    )  # fmt: skip
    accumulate: int = option(
        "recipe", 1, "forward and backward passes per step: the global batch is BATCH x devices x this", minimum=1
    )
    epochs: int = option("recipe", 0, "train this many epochs instead, and validate after each", minimum=0, trains=True)
    lr: float = option("recipe", 0.05, "learning rate", exclusive_minimum=0)
    momentum: float = option("recipe", 0.9, "momentum of sgd", minimum=0)
    nesterov: bool = option("recipe", False, "sgd with Nesterov's momentum")
    weight_decay: float = option("recipe", 0.0, "weight decay", minimum=0)
    optimizer: str = option("recipe", "sgd", "the optimizer", choices=OPTIMIZERS)
    fused: bool | None = option(
        "recipe", None, "torch's fused optimizer: the whole step in few kernels (cpu: 0, gpu: 1)", plain=False
    )
    schedule: str = option(
        "recipe", "constant", f"learning-rate schedule: {', '.join(SCHEDULES)}; step:30,60,80 drops after these "
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
    precision: str | None = option(
        "recipe", None, "arithmetic of the step; fp16 scales the loss (cpu: fp32; gpu: bf16 from Ampere on, fp16 on "
        "Volta and Turing, fp32 on older ones)", choices=PRECISIONS, plain="fp32",
    )  # fmt: skip
    plain: bool = option(
        "recipe", False, "GPUs: what is not given is as in plain PyTorch: fp32 without TF32, N C H W, no search by "
        "cuDNN, no fused optimizer, BATCH=64"
    )  # fmt: skip
    seed: int = option("recipe", 0, "seed of weights, of data order and of augmentation", minimum=0)

    # engine: how the mode carries that out. The table in bench/config/modes.py says which mode has which.
    launcher: str = option(
        "engine",
        "auto",
        "how the processes are started (ddp: torchrun or spawn; horovod: horovodrun or mpirun)",
        choices=("auto", *LAUNCHERS),
    )
    tuned: bool = option("engine", False, "engine settings and batch that hide communication")
    channels_last: bool | None = option(
        "engine", None, "images and weights in memory as N H W C (cpu: 0; gpu: 1 but in fp32)", plain=False
    )
    cudnn_benchmark: bool | None = option(
        "engine", None, "cuDNN tries its algorithms at the first steps and keeps the fastest (cpu: 0, gpu: 1)",
        plain=False,
    )  # fmt: skip
    compile: bool = option("engine", False, f"torch.compile the model: 1, or its mode: {', '.join(COMPILE_MODES)}")
    compile_mode: str | None = option(
        "engine", None, "the mode of torch.compile that COMPILE names", flag="compile", choices=COMPILE_MODES,
        within="compile",
    )  # fmt: skip
    bucket_cap_mb: float | None = option("engine", None, "ddp: bucket size in MiB (25)", exclusive_minimum=0)
    gradient_as_bucket_view: bool = option("engine", False, "ddp: gradients are views of their buckets")
    static_graph: bool = option("engine", False, "ddp: the graph is the same every step")
    batched_grad_copy: bool = option(
        "engine", False, "ddp: gradients are copied into a bucket all at once, and not one by one (torch 2.14 or newer)"
    )
    numa_binding: bool = option(
        "engine", False, "GPUs: torchrun binds each rank to the CPUs that are nearest to its GPU (--numa-binding node)"
    )
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
    adasum: bool = option("engine", False, "horovod: Adasum instead of the mean; needs MPI, so LAUNCHER is mpirun")
    reshard: bool = option(
        "engine", True, "fsdp: a block's weights are freed after its forward pass; 0: kept until its backward pass"
    )
    prefetch: int | None = option(
        "engine", None, "fsdp: gather the weights of so many blocks ahead (backward 1, forward 0)", minimum=1
    )
    param_dtype: str | None = option(
        "engine", None, "fsdp: MixedPrecisionPolicy(param_dtype=): the weights are gathered in this type, that of "
        "PRECISION, and batch norms in fp32 (all in fp32)", choices=SHORT,
    )  # fmt: skip
    reduce_dtype: str | None = option(
        "engine", None, "fsdp: MixedPrecisionPolicy(reduce_dtype=): gradients are reduced in this type (as "
        "PARAM_DTYPE; without it fp32)", choices=("fp32", *SHORT),
    )  # fmt: skip
    local_steps: int = option(
        "engine", 4, "local: steps that each rank takes alone before the weights are averaged", minimum=1
    )
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
    profile: bool = option(
        "measuring", False, "torch.profiler around one more step: its timeline goes into the record; of one device "
        "also when each gradient is ready, for `bench forecast`"
    )  # fmt: skip
    memory: bool | None = option(
        "measuring", None, "record every allocation of one more step: what each device's memory is filled with at its "
        "peak (cpu: 0, gpu: 1; with EPOCHS 0)", plain=False,
    )  # fmt: skip
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
    hosts: str | None = option(
        "resources", None, "several machines, each with its number of devices: node1:4,node2:4; a file of such lines; "
        "or slurm, inside of an allocation", variable="BENCH_HOSTS",
    )  # fmt: skip
    remote: str | None = option(
        "resources", None, f"what runs a command on one of HOSTS ({SSH}; slurm: srun)", variable="BENCH_REMOTE"
    )
    iface: str | None = option(
        "resources", None, "network interface by which HOSTS talk (the one of the route to the first of them)",
        variable="BENCH_IFACE",
    )  # fmt: skip

    elastic: int = option(
        "resources", 0, "go on when ranks or machines are lost, on this many devices at least, GPUS at most",
        minimum=0, trains=True,
    )  # fmt: skip
    restarts: int = option(
        "resources", 3, "with ELASTIC: how many interruptions a run survives", minimum=0, trains=True
    )

    # files
    out: str = option("files", "results/runs", "folder for run folders", path=True)
    data_dir: str = option("files", CACHE, "where data sets are looked for, downloaded and staged", path=True)
    resume: str | None = option(
        "files", None, "resume from a checkpoint: a file, a run's folder, or a folder of runs", path=True, trains=True
    )
    trust: bool = option("files", False, "read a weights file that can execute code (pickle)")

    # besides the steps
    print_every: int | None = option(
        "besides", None, "a line of progress every so many steps (default: every 5 s and 10th of the steps)", minimum=1
    )
    evaluate: bool = option("besides", False, "only validate, with the weights of RESUME or PRETRAINED", trains=True)
    target: float | None = option(
        "besides",
        None,
        "measure the time to this top-1 accuracy, as in 0.98, or the metric of another workload",
        exclusive_minimum=0,
        trains=True,
    )
    peak_tflops: float | None = option(
        "besides", None, "what one device can compute at most, TFLOP/s, for the model FLOPs utilisation of gpt (GPUs: "
        "by a table of makers' data)", exclusive_minimum=0,
    )  # fmt: skip
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
    probe: str | None = option(
        "labels",
        None,
        "label: what ranks do instead of training (bench/config/tasks.py)",
        within="study",
    )
    looks: str | None = option(
        "labels", None, "label: the rounds after which its suite was to end if every pair had a verdict, as in 4,8,16"
    )
    limit_minutes: float | None = option(
        "labels", None, "label: after which time its suite was to end, whatever it had shown", exclusive_minimum=0
    )
    gpu_defaults: str | None = option(
        "labels", None, "label: what was left open and chosen for the GPU, as in precision=bf16 fused=1"
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
    def machines(self) -> list[Host]:
        """The machines of HOSTS that take part, each with its number of devices; empty without HOSTS."""
        return share(parse(self.hosts), self.num_devices) if self.hosts else []

    @property
    def leaves(self) -> str:
        """The file that a run leaves in its folder when it has ended well."""
        return TASKS[self.probe_kind].leaves if self.probe else "record.json"

    @property
    def probe_kind(self) -> str:
        """The task of the ranks instead of training, one of TASKS; "" where they train."""
        return tasks.parse(self.probe)[0] if self.probe else ""

    @property
    def threads_per_process(self) -> int:
        """The CPU threads of one process: its share of the total, at least one."""
        return max(1, self.threads // self.num_processes)


# What every option is when it is not given: on a CPU and with PLAIN=1, where it is chosen by the GPU.
FIELDS = {f.name: f for f in dataclasses.fields(RunConfig)}
PLAIN = {name: f.metadata["plain"] for name, f in FIELDS.items() if f.metadata["plain"] is not None}
UNSET = {name: f.default for name, f in FIELDS.items()} | PLAIN


def when_not_given(config: RunConfig, f: dataclasses.Field):
    """What an option of a resolved config would be, were it not given; None where that is for the GPU to say."""
    chosen = config.device == "cuda" and not config.plain
    return f.default if chosen else UNSET.get(f.name, f.default)


def names(*parts: str) -> list[str]:
    """The options of these parts, in the order of RunConfig's fields.

    >>> names("labels")
    ['study', 'suite', 'program', 'variant', 'round', 'probe', 'looks', 'limit_minutes', 'gpu_defaults']
    """
    return [f.name for f in dataclasses.fields(RunConfig) if f.metadata["part"] in parts]


def of_training() -> list[str]:
    """The options of a training by epochs, which a run that only times steps does without."""
    return [f.name for f in dataclasses.fields(RunConfig) if f.metadata["trains"]]


def on_devices(config: RunConfig, num_devices: int, **changes) -> RunConfig:
    """A resolved config on another number of devices: each process keeps its threads and its loader workers."""
    share = {name: max(1, getattr(config, name) * num_devices // config.num_devices) for name in ("threads", "workers")
             if getattr(config, name)}  # fmt: skip
    return dataclasses.replace(config, num_devices=num_devices, **share | changes)


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
        object.__setattr__(config, f.name, values.get(f.name, UNSET[f.name]))
    return config
