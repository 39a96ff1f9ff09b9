"""The table of modes: what must be known of a mode before its processes exist. It imports no torch.

To add a mode: write its file in bench/modes, add its line here, and add its row to the equivalence test.
"""

from dataclasses import dataclass, field

LAUNCHERS = ("in-process", "torchrun", "spawn", "horovodrun")


@dataclass(frozen=True)
class Look:
    """How a mode, a phase or a source is drawn: a colour of Okabe and Ito's, which the colour-blind can distinguish,
    and a hatch, a marker and a line style (as matplotlib names them), so that a picture printed in grey still says
    which."""

    colour: str
    hatch: str = ""
    marker: str = "o"
    line: object = "-"


@dataclass(frozen=True)
class ModeInfo:
    """One line of the table.

    summary: in a few words. look: in pictures. launchers: who can start it, the default first. one_process: it is one
    process on all devices. baseline: the no-communication upper bound, and no way to train. max_devices: the most it
    can use. needs: a package beyond torch. sync_norm: it takes NORM=sync. compiles: it takes COMPILE=1.
    knobs: the options of RunConfig that only some modes have and this one has, with the values it takes besides the
    default (None: any). tuned: device -> what TUNED=1 sets among them, without changing the mathematics of the step.
    sweep: what `bench knobs` tries: options to cross with each other -> their values; sweep_on_gpu: the values that are
    others there. single: settings tried alone; single_on_gpu: those that GPUs alone have.
    on_gpu: settings that `bench gpu-check` runs: what an option is on CUDA streams is not what it is on a CPU.
    norm_buffers: whose running statistics of batch norm it keeps.
    """

    summary: str
    look: Look
    launchers: tuple[str, ...]
    one_process: bool = False
    baseline: bool = False
    max_devices: int | None = None
    needs: str | None = None
    sync_norm: bool = True
    compiles: bool = True
    knobs: dict = field(default_factory=dict)
    tuned: dict[str, dict] = field(default_factory=dict)
    sweep: dict[str, tuple] = field(default_factory=dict)
    sweep_on_gpu: dict[str, tuple] = field(default_factory=dict)
    single: tuple[dict, ...] = ()
    single_on_gpu: tuple[dict, ...] = ()
    on_gpu: tuple[dict, ...] = ()
    norm_buffers: str = ""


# One process has no engine to sweep, but options of training.
FORMATS = ({"channels_last": True}, {"precision": "bf16"}, {"channels_last": True, "precision": "bf16"})
COMPILED = ({"compile": True}, {"compile": True, "precision": "bf16"})

MODES = {
    "single": ModeInfo(
        "one process, one device", Look("#6E6E6E", "", "o", (0, (5, 1, 1, 1, 1, 1))), ("in-process",),
        one_process=True, max_devices=1, single=(*FORMATS, *COMPILED),
        single_on_gpu=({"cudnn_benchmark": True}, {"fused": True}),
    ),
    "dp": ModeInfo(
        "nn.DataParallel: one process, one thread per device", Look("#E69F00", "///", "s", "--"), ("in-process",),
        one_process=True, sync_norm=False, compiles=False,  # what it copies every step cannot be compiled
        single=FORMATS, norm_buffers="keeps device 0's",
    ),
    "ddp": ModeInfo(
        "DistributedDataParallel: one process per device", Look("#0072B2", "", "^", "-"), ("torchrun", "spawn"),
        knobs={"bucket_cap_mb": None, "gradient_as_bucket_view": None, "static_graph": None, "broadcast_buffers": None,
               "overlap": None, "sync": None, "init_sync": None, "compression": ("fp16", "bf16", "powersgd")},
        # A gradient is stored once, inside its bucket, and the unused-parameter bookkeeping is skipped.
        tuned={device: {"gradient_as_bucket_view": True, "static_graph": True} for device in ("cpu", "cuda")},
        sweep={"bucket_cap_mb": (1.0, 5.0, 25.0, 100.0), "gradient_as_bucket_view": (False, True)},
        single=({"static_graph": True}, {"overlap": False}, {"broadcast_buffers": False}, {"compression": "fp16"},
                {"compression": "bf16"}, {"compression": "powersgd"}),
        on_gpu=({"overlap": False}, {"compression": "fp16"}, {"compression": "powersgd"}, {"sync": False},
                {"gradient_as_bucket_view": True, "static_graph": True}),
        norm_buffers="broadcasts rank 0's before each forward pass, so at the end of a step ranks differ by that step "
        "alone",
    ),
    "horovod": ModeInfo(
        "Horovod: one process per device", Look("#009E73", "...", "D", "-."), ("horovodrun",), needs="horovod",
        knobs={"fusion_mb": None, "cycle_time_ms": None, "autotune": None,
               "async_completion": None, "adasum": None, "overlap": None,
               "sync": None, "init_sync": None, "compression": ("fp16",)},
        # Its background thread wakes every 25 ms instead of every one: it takes the core from the training thread less
        # often and sends larger reductions, and the last one of a step waits for it 25 ms at most. A GPU's step may be
        # no longer than that, and takes no core: there its own 1 ms stays.
        tuned={"cpu": {"cycle_time_ms": 25.0}},
        sweep={"fusion_mb": (1.0, 16.0, 128.0), "cycle_time_ms": (1.0, 5.0, 25.0)},
        sweep_on_gpu={"cycle_time_ms": (0.5, 1.0, 2.0, 5.0)},
        single=({"overlap": False}, {"compression": "fp16"}),  # autotune searches for hundreds of steps
        single_on_gpu=({"async_completion": True},),
        on_gpu=({"overlap": False}, {"compression": "fp16"}, {"sync": False}, {"async_completion": True}),
        norm_buffers="leaves each rank its own, and they drift apart",
    ),
    "independent": ModeInfo(
        "one process per device, no communication: the upper bound", Look("#CC79A7", "xxx", "v", ":"),
        ("torchrun", "spawn"), baseline=True,
    ),
}  # fmt: skip

TRAINABLE = [mode for mode, info in MODES.items() if not info.baseline]  # to train
UPPER_BOUNDS = [mode for mode, info in MODES.items() if info.baseline]
