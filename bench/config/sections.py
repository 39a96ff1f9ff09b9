"""The options, in sections: each is a frozen dataclass, the type of the options that a part of the program needs.

``RunConfig`` (bench/config/options.py) has all of them. The flags of the command line, the variables of the Makefile,
the checks, the manual and the ``config`` of a record are made from these fields; nothing else defines an option. To add
one: its line here. Names are unique over all sections. It imports no torch.
"""

from dataclasses import dataclass

from bench import mistakes
from bench.config import data_sets, own
from bench.config.fields import option
from bench.config.hosts import SSH
from bench.config.values import SCHEDULES

LAUNCHERS = ("in-process", "torchrun", "spawn", "mpirun", "horovodrun")
COMPILE_MODES = ("reduce-overhead", "max-autotune")  # of torch.compile, other than the default
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
SHORT = ("bf16", "fp16")  # of 16 bits
NORMS = ("batch", "group", "none", "sync")
OPTIMIZERS = ("sgd", "adam", "adamw")
TRACKERS = {"none": (), "tensorboard": ("tensorboard",), "wandb": ("wandb", "tensorboard")}  # with their packages
DEVICES = ("auto", "cpu", "cuda")
DECODES = ("cpu", "cuda", "auto")
AVERAGES = ("ema", "swa")  # averages of the weights, in addition to the trained ones
COMPRESSIONS = ("none", "fp16", "bf16", "powersgd")
MOST_STEPS = 2**31 - 1
CACHE = "~/.cache/data-parallel-bench/data"

# fmt: off


@dataclass(frozen=True)
class Model:
    """Model and initial weights."""

    model: str | None = option(None, "a torchvision model (cpu: resnet18, gpu: resnet50), timm:NAME, keras:NAME, gpt, "
        f"or your own as {own.FORM}")
    layers: int | None = option(None, "gpt: transformer blocks (cpu: 2, gpu: 12)", flag="num_layers", minimum=1,
        advanced=True)
    width: int | None = option(None, "gpt: embedding dimension (cpu: 64, gpu: 768)", flag="embed_dim", minimum=1,
        advanced=True)
    heads: int | None = option(None, "gpt: attention heads, a divisor of EMBED_DIM (cpu: 2, gpu: 12)",
        flag="num_heads", minimum=1, advanced=True)
    norm: str = option("batch", "'group': group norm of up to 8 groups; 'none': every batch "
        "norm becomes a scale and a shift; 'sync': over the global batch", choices=NORMS, advanced=True)
    bn_momentum: float | None = option(None, "momentum of batch norm's running statistics: weight of the newest batch "
        "(0.1)", exclusive_minimum=0, maximum=1, advanced=True)
    pretrained: str | None = option(None, "initial weights: a file, one key of it as in a.pt#ema, or torchvision",
        path=True)
    freeze: str | None = option(None, "parameters to freeze, as in conv1*,layer1*; all except fc*: not:fc*",
        advanced=True)
    train_only: str | None = option(None, flag="freeze", within="freeze", form="not:{}")


@dataclass(frozen=True)
class Data:
    """Data and its loader."""

    data: str | None = option(None, f"{', '.join(data_sets.choices())} (cpu: digits, gpu: synthetic)")
    val_labels: str | None = option(None, "labels file for a val without class folders, as ImageNet's (found by name "
        "in the data's folder)", path=True, advanced=True)
    image_size: int | None = option(None, "pixels per side (by data; digits 16, photographs cpu 64, gpu 224)",
        minimum=8)
    context: int | None = option(None, "bytes in a sequence, for DATA=stdlib (cpu: 64, gpu: 1024)", minimum=2,
        advanced=True)
    augment: bool | None = option(None, "random crops and flips in training (digits, synthetic: 0; others: 1)")
    in_memory: bool | None = option(None, "decode every image once and keep it in memory (by size)",
        flag="cache_images", advanced=True)
    skip_bad: bool = option(False, "skip and count images that cannot be read; 0: they are an error",
        advanced=True)
    decode: str = option("cpu", "where JPEGs are decoded: by the loader's workers, or on the GPU by torchvision's "
        "nvJPEG; auto: on the GPU if supported", choices=DECODES, advanced=True)
    workers: int | None = option(None, "data loader workers, total over all processes (files: one per process, gpu: "
        "one per core)", minimum=0)
    storage_ms: float = option(0.0, "simulated wait for storage in the loader, ms per image", minimum=0, advanced=True)


@dataclass(frozen=True)
class Recipe:
    """Training: batch, optimizer, schedule, precision, seed."""

    per_device_batch: int | None = option(None,
        "per-device batch size; max: the largest that fits (cpu: 32, gpu: by its memory, at most 256)",
        flag="batch", minimum=1)
    accumulate: int = option(1, "gradient accumulation: forward and backward passes per step",
        minimum=1)
    epochs: int = option(0, "train this many epochs instead of STEPS, and validate after each", minimum=0, trains=True)
    lr: float = option(0.05, "learning rate", exclusive_minimum=0)
    momentum: float = option(0.9, "momentum of sgd", minimum=0)
    nesterov: bool = option(False, flag="optimizer", within="optimizer", form="nesterov")
    weight_decay: float = option(0.0, "weight decay", minimum=0)
    optimizer: str = option("sgd", "optimizer; nesterov: sgd with Nesterov's momentum", choices=OPTIMIZERS)
    fused: bool | None = option(None, "fused optimizer, with few kernels per step (cpu: 0, gpu: 1)",
        plain=False, advanced=True)
    schedule: str = option("constant", f"learning-rate schedule: {', '.join(SCHEDULES)}; step:30,60,80:0.1 (epochs, "
        "factor), step:every30:0.1, cyclic:30:0.1 (epochs per cycle, lowest over highest)")
    schedule_epochs: float = option(30.0, exclusive_minimum=0, flag="schedule", within="schedule", form="…:{:g}")
    schedule_factor: float = option(0.1, exclusive_minimum=0, flag="schedule", within="schedule", form="…:{:g}")
    lr_batch: int | None = option(None, "reference global batch for LR: LR is scaled linearly to the run's",
        flag="lr_base_batch", minimum=1, advanced=True)
    lr_warmup_steps: int = option(0, "linear warm-up of the learning rate: steps, as in 500, or epochs, as in 5e",
        flag="lr_warmup", minimum=0)
    lr_warmup_epochs: float = option(0.0, flag="lr_warmup", minimum=0, trains=True, within="lr_warmup_steps",
        form="{:g}e")
    clip_norm: float | None = option(None, "clip the gradient's norm to this", exclusive_minimum=0, advanced=True)
    loss_guard: float | None = option(None, "all ranks skip a step whose loss is not finite, or above this many times "
        "its running mean", exclusive_minimum=1, advanced=True)
    ema: float | None = option(None, "also keep an exponential moving average of the weights: its decay per step, as "
        "in 0.999", exclusive_minimum=0, trains=True, advanced=True)
    swa: int | None = option(None, "also keep the mean of the weights from this epoch on (SWA)",
        minimum=1, trains=True, advanced=True)
    precision: str | None = option(None,
        "precision of the step (cpu: fp32; gpu: bf16, or fp16 before Ampere)", choices=PRECISIONS, plain="fp32")
    plain: bool = option(False, "GPUs: defaults as in plain PyTorch: fp32 without TF32, N C H W, no cuDNN benchmark, "
        "no fused optimizer, BATCH=64", flag="torch_defaults", advanced=True)
    seed: int = option(0, "seed of weights, data order and augmentation", minimum=0)


@dataclass(frozen=True)
class Launch:
    """Start of the processes."""

    launcher: str = option("auto", "launcher", choices=("auto", *LAUNCHERS))
    numa_binding: bool = option(False, "GPUs: torchrun binds each rank to the CPUs nearest to its GPU")


@dataclass(frozen=True)
class Execution:
    """Execution on a device: memory format, cuDNN, compiler, activations."""

    tuned: bool = option(False, "backend options and batch size that hide communication")
    channels_last: bool | None = option(None, "channels-last memory format, N H W C (cpu: 0; gpu: 1 except in fp32)",
        plain=False, advanced=True)
    cudnn_benchmark: bool | None = option(None, "benchmark cuDNN algorithms in the first steps and use the fastest "
        "(cpu: 0, gpu: 1)", plain=False, advanced=True)
    compile: bool = option(False, f"torch.compile the model: 1, or its mode: {', '.join(COMPILE_MODES)}")
    compile_mode: str | None = option(None, "the mode of torch.compile that COMPILE names", flag="compile",
        choices=COMPILE_MODES, within="compile")
    activation_checkpointing: bool = option(False, "a block keeps only its input, and is computed again in the "
        "backward pass: less memory, longer steps")


@dataclass(frozen=True)
class Exchange:
    """Gradient exchange (ddp, zero1, horovod)."""

    overlap: bool = option(True, "0: every reduction after the whole backward pass")
    compression: str = option("none", "gradient compression", choices=COMPRESSIONS)
    sync: bool = option(True, flag="inject", within="mistake", form="no-exchange")
    init_sync: bool = option(True, flag="inject", within="mistake", form="unsynced-init")


@dataclass(frozen=True)
class Ddp:
    """DDP: buckets and buffers (ddp, zero1)."""

    bucket_cap_mb: float | None = option(None, "bucket size, MiB (25)", exclusive_minimum=0)
    gradient_as_bucket_view: bool = option(False, "gradients are views of their buckets")
    static_graph: bool = option(False, "the graph is the same every step")
    batched_grad_copy: bool = option(False, "gradients are copied into a bucket together (torch 2.14 or newer)")
    broadcast_buffers: bool = option(True, "rank 0's buffers are broadcast before each forward pass")


@dataclass(frozen=True)
class Horovod:
    """Horovod: fusion, cycle, Adasum."""

    fusion_mb: float | None = option(None, "horovod: fusion buffer in MiB, HOROVOD_FUSION_THRESHOLD (128)", minimum=0)
    cycle_time_ms: float | None = option(None, "horovod: cycle time in ms, HOROVOD_CYCLE_TIME (1)", exclusive_minimum=0)
    autotune: bool = option(False, "horovod: autotune fusion and cycle time, HOROVOD_AUTOTUNE")
    async_completion: bool = option(False, "horovod on GPUs: the host does not wait for a reduction, "
        "HOROVOD_ENABLE_ASYNC_COMPLETION")
    adasum: bool = option(False, "horovod: Adasum instead of the mean; needs MPI, so LAUNCHER is mpirun")


@dataclass(frozen=True)
class Fsdp:
    """Sharding by fully_shard (fsdp)."""

    reshard: bool = option(True, "fsdp: a block's weights are freed after its forward pass; 0: kept until its backward "
        "pass", flag="reshard_after_forward")
    prefetch: int | None = option(None, "fsdp: number of blocks to gather ahead (backward 1, forward 0)",
        flag="prefetch_blocks", minimum=1)
    param_dtype: str | None = option(None, "fsdp: MixedPrecisionPolicy(param_dtype=): type in which weights are "
        "gathered, the same as PRECISION; batch norms stay in fp32 (all in fp32)", choices=SHORT)
    reduce_dtype: str | None = option(None, "fsdp: MixedPrecisionPolicy(reduce_dtype=): type in which gradients are "
        "reduced (PARAM_DTYPE, or fp32)", choices=("fp32", *SHORT))


@dataclass(frozen=True)
class Local:
    """Averaging of weights (local)."""

    local_steps: int = option(4, "local: steps of each rank between two averagings of the weights", minimum=1)


@dataclass(frozen=True)
class Injected:
    """Mistakes and faults, on purpose."""

    step_barrier: bool = option(False, flag="inject", within="mistake", form="barrier")
    item_sync: bool = option(False, flag="inject", within="mistake", form="host-sync")
    mistake: str = option("none", "a mistake's name (`bench mistake show`), no-exchange (of gradients), unsynced-init, "
        "barrier (every step), host-sync (loss.item() every step), raise|kill|hang:RANK:STEP; several with commas",
        flag="inject", choices=("none", *mistakes.INJECTED), advanced=True)
    fault: str | None = option(None, flag="inject", within="mistake")


@dataclass(frozen=True)
class Measuring:
    """Measurement."""

    warmup_steps: int | None = option(None, "untimed steps first (cpu: 3, gpu: 20)", flag="warmup", minimum=0,
        maximum=MOST_STEPS)
    timed_steps: int | None = option(None, "timed steps (cpu: 10, gpu: 100)", flag="steps", minimum=1,
        maximum=MOST_STEPS)
    val_batch: int | None = option(None, "per-device batch size of a validation (BATCH)", minimum=1,
        trains=True, advanced=True)
    profile: bool = option(False, "profile one more step with torch.profiler; the record contains its timeline; "
        "torch: also keep torch.profiler's trace of each rank")
    profile_kept: bool = option(False, flag="profile", within="profile", form="torch")
    memory: bool | None = option(None, "record the allocations of one more step: peak memory of the device, by kind "
        "(cpu: 0, gpu: 1; with EPOCHS 0)", plain=False, advanced=True)
    watch: bool = option(False, "check the run for known mistakes; slows untimed steps")
    replicas: bool = option(False, "record the distance between replicas after every step, and the accuracy of each",
        advanced=True)
    snapshots: str | None = option(None, "save weights after these steps, as in 1,5,20 (what verify compares)",
        advanced=True)


@dataclass(frozen=True)
class Resources:
    """Resources, several machines, time limit."""

    threads: int | None = option(None, "CPU threads in total (the usable cores)", minimum=1, maximum=4096)
    memory_gib: float | None = option(None, "memory of one device, GiB: a run that needs more fails (gpu: its own; "
        "cpu: no limit)", exclusive_minimum=0, maximum=2**20)
    timeout: float = option(900.0, "time limit without progress, s", exclusive_minimum=0)
    allow_slow: bool = option(False, "run a precision for which this CPU has no instructions (6 to 40 times slower)",
        advanced=True)
    gpu_ids: str | None = option(None, "the GPUs that GPUS names, as in 0,1 or 3, or UUIDs", flag="gpus",
        within="num_devices")
    dist_url: str | None = option(None, "rendezvous: tcp://HOST:PORT, or file:///PATH (spawn only)", advanced=True)
    hosts: str | None = option(None, "machines with their number of devices: node1:4,node2:4; a file of such lines; or "
        "slurm", variable="BENCH_HOSTS")
    remote: str | None = option(None, f"command that runs another one on one of HOSTS ({SSH}; slurm: srun)",
        variable="BENCH_REMOTE", advanced=True)
    iface: str | None = option(None, "network interface that connects HOSTS (that of the route to the first of "
        "them)", variable="BENCH_IFACE", advanced=True)
    elastic: int = option(0, "elastic training: minimum number of devices; continue if ranks or machines are lost",
        flag="min_devices", minimum=0, trains=True, advanced=True)
    restarts: int = option(3, "with MIN_DEVICES: number of interruptions that a run survives", minimum=0, trains=True,
        advanced=True)


@dataclass(frozen=True)
class Files:
    """Files."""

    out: str = option("results/runs", "folder for run folders", path=True)
    data_dir: str = option(CACHE, "folder for data sets: found, downloaded and staged there", path=True,
        advanced=True)
    resume: str | None = option(None, "resume from a checkpoint: a file, a run's folder, or a folder of runs",
        path=True, trains=True)
    trust: bool = option(False, "load weights files that can execute code (pickle)", flag="allow_pickle",
        advanced=True)


@dataclass(frozen=True)
class Extras:
    """Progress, validation, checkpoints, trackers."""

    print_every: int | None = option(None,
        "print progress every N steps (default: at most 20 times, 5 s or more apart)", minimum=1, advanced=True)
    evaluate: bool = option(False, "only validate, with the weights of RESUME or PRETRAINED", trains=True,
        advanced=True)
    target: float | None = option(None,
        "measure the time to this accuracy, as in 0.98, or value of the workload's metric", exclusive_minimum=0,
        trains=True)
    peak_tflops: float | None = option(None, "peak of one device in the run's precision, TFLOP/s, for MFU (GPUs: "
        "from a table of data sheets)", exclusive_minimum=0, advanced=True)
    baselines: bool | None = option(None, "also run the two baselines (cpu: 1, gpu: 0)", advanced=True)
    checkpoint: bool | None = option(None, "write checkpoints after every epoch (with EPOCHS: 1)", trains=True)
    checkpoint_steps: int | None = option(None, "also write a checkpoint every N steps", minimum=1, trains=True,
        advanced=True)
    keep: str | None = option(None, "also keep a checkpoint per epoch: 'all', or the newest N",
        flag="keep_checkpoints", trains=True, advanced=True)
    track: str = option("none", "log to a tracker, offline (rank 0)", choices=tuple(TRACKERS), trains=True,
        advanced=True)
    copy_to: str | None = option(None, "URL to copy the run's folder to at the end", path=True, trains=True,
        advanced=True)


@dataclass(frozen=True)
class Label:
    """A run's place in its suite, and the origin of its options: not part of the recipe, and not set by users."""

    study: str | None = option(None)  # its study
    suite: str | None = option(None)
    program: str | None = option(None)  # its name in the suite
    variant: str | None = option(None)  # the role of the program in its suite, as in right, wrong
    round: int | None = option(None, minimum=0)
    probe: str | None = option(None)  # the ranks' task instead of training (bench/config/tasks.py)
    # The rounds of its suite's interim analyses, as in 4,8,16.
    looks: str | None = option(None)
    limit_minutes: float | None = option(None, exclusive_minimum=0)  # time limit of its suite
    config_file: str | None = option(None)  # the name of the file that CONFIG names
    gpu_defaults: str | None = option(None)  # options chosen for the GPU, as in precision=bf16 fused=1
    batch_search: str | None = option(None)  # the tries of BATCH=max, as JSON; in a record they are ``batch_search``
