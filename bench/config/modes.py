"""The table of modes: facts that are needed before a mode's processes start. It imports no torch.

To add a mode: write its file in bench/modes, add its line here, and add its row to the equivalence test.
"""

from dataclasses import dataclass, field, fields

from bench.config.sections import COMPILE_MODES, COMPRESSIONS, Ddp, Exchange, Fsdp, Horovod, Local


@dataclass(frozen=True)
class PlotStyle:
    """How a mode, a phase or a source is drawn: a colour of Okabe and Ito's, which the colour-blind can distinguish,
    and matplotlib's hatch, marker and line style, for prints in grey."""

    colour: str
    hatch: str = ""
    marker: str = "o"
    line: object = "-"


@dataclass(frozen=True)
class ModeInfo:
    summary: str
    look: PlotStyle
    launchers: tuple[str, ...]  # launchers that can start it, the default first
    one_process: bool = False  # on all devices
    baseline: bool = False  # the no-communication baseline, which does not train
    max_devices: int | None = None
    needs: str | None = None  # a package beyond torch
    sync_norm: bool = True  # it supports NORM=sync
    no_compile: str = ""  # why it does not support COMPILE=1
    on_request: bool = False  # studies include it only if MODES names it
    shards: tuple[str, ...] = ()  # what is sharded over the ranks
    same_update: bool = True  # a step computes the same update as one process on the global batch
    elastic: bool = False  # it supports MIN_DEVICES
    knobs: dict = field(default_factory=dict)  # options of only some modes -> values other than the default, or None
    tuned: dict[str, dict] = field(default_factory=dict)  # device -> what TUNED=1 sets; the step computes the same
    sweep: tuple[dict, ...] = ()  # settings that `bench sweep` tries one at a time, if it gets no lists
    sweep_on_gpu: tuple[dict, ...] = ()  # GPUs only
    on_gpu: tuple[dict, ...] = ()  # settings that `bench doctor gpu` runs
    norm_buffers: str = ""  # whose running statistics of batch norm are kept
    gradient_copy: str = (
        ""  # the backend's own memory in addition to the gradients: "buckets" (all), "fusion buffer" (FUSION_MB)
    )


def describe_emulation(mode: str, devices: int) -> str:
    """As in "2 CPU processes emulate 2 devices"."""
    each = f"{devices} threads of one CPU process" if MODES[mode].one_process else f"{devices} CPU processes"
    return f"{each} emulate {devices} devices"


# One process has no backend options to sweep, only training options.
FORMATS = ({"channels_last": True}, {"precision": "bf16"}, {"channels_last": True, "precision": "bf16"})
# GPU defaults are tried switched off; with TORCH_DEFAULTS=1 switched on.
ON_GPU = ({"precision": "fp32"}, {"precision": "tf32"}, {"channels_last": False},
          *({name: on} for name in ("cudnn_benchmark", "fused") for on in (True, False)))  # fmt: skip
COMPILED = ({"compile": True}, {"compile": True, "precision": "bf16"})
TORCHRUN = {"numa_binding": None}  # for ranks started by torchrun


def options_of(*sections: type, without: str = "", compression: tuple[str, ...] = ()) -> dict:
    """The options of these sections, as in ``ModeInfo.knobs``."""
    names = [f.name for section in sections for f in fields(section) if f.name != without]
    return {name: compression if name == "compression" else None for name in names}


MODES = {
    "single": ModeInfo(
        "one process, one device", PlotStyle("#6E6E6E", "", "o", (0, (5, 1, 1, 1, 1, 1))), ("in-process",),
        one_process=True, max_devices=1, sweep=(*FORMATS, *COMPILED),
        sweep_on_gpu=(*ON_GPU, *({"compile": True, "compile_mode": mode} for mode in COMPILE_MODES)),
    ),
    "dp": ModeInfo(
        "nn.DataParallel: one process, one thread per device", PlotStyle("#E69F00", "///", "s", "--"), ("in-process",),
        one_process=True, sync_norm=False,
        no_compile="it copies the model every step, and PyTorch does not compile such copies",
        sweep=FORMATS, sweep_on_gpu=ON_GPU, norm_buffers="keeps device 0's",
    ),
    "ddp": ModeInfo(
        "DistributedDataParallel: one process per device", PlotStyle("#0072B2", "", "^", "-"), ("torchrun", "spawn"),
        elastic=True,
        knobs=options_of(Ddp, Exchange, compression=COMPRESSIONS[1:]) | TORCHRUN,
        # A gradient is stored once, inside its bucket, and the bookkeeping of unused parameters is skipped.
        tuned={device: {"gradient_as_bucket_view": True, "static_graph": True} for device in ("cpu", "cuda")},
        sweep=(*({"bucket_cap_mb": size} for size in (1.0, 5.0, 25.0, 100.0)), {"gradient_as_bucket_view": True},
               {"static_graph": True}, {"overlap": False}, {"broadcast_buffers": False},
               *({"compression": kind} for kind in COMPRESSIONS[1:])),
        sweep_on_gpu=({"batched_grad_copy": True}, {"numa_binding": True}),
        on_gpu=({"overlap": False}, {"compression": "fp16"}, {"compression": "powersgd"}, {"sync": False},
                {"gradient_as_bucket_view": True, "static_graph": True}),
        gradient_copy="buckets",
        norm_buffers="broadcasts rank 0's before each forward pass, so at the end of a step ranks differ by that step "
        "alone",
    ),
    "horovod": ModeInfo(
        "Horovod: one process per device", PlotStyle("#009E73", "...", "D", "-."), ("horovodrun", "mpirun"),
        elastic=True, needs="horovod",
        knobs=options_of(Horovod, Exchange, compression=("fp16",)),
        # Its background thread interrupts the training thread every 25 ms instead of every 1 ms, and sends larger
        # reductions. A GPU's step needs no core, and may be shorter than 25 ms: there 1 ms stays.
        tuned={"cpu": {"cycle_time_ms": 25.0}},
        sweep=(*({"fusion_mb": size} for size in (1.0, 16.0, 128.0)), *({"cycle_time_ms": t} for t in (1.0, 5.0, 25.0)),
               {"overlap": False}, {"compression": "fp16"}),  # autotune searches for hundreds of steps
        sweep_on_gpu=({"cycle_time_ms": 0.5}, {"cycle_time_ms": 2.0}, {"async_completion": True}),
        on_gpu=({"overlap": False}, {"compression": "fp16"}, {"sync": False}, {"async_completion": True}),
        gradient_copy="fusion buffer", norm_buffers="leaves each rank its own, and they drift apart",
    ),
    "zero1": ModeInfo(
        "DDP with sharded optimizer state: ZeroRedundancyOptimizer", PlotStyle("#56B4E9", "\\\\\\", "P", (0, (3, 1))),
        ("torchrun", "spawn"), on_request=True, shards=("optimizer state",),
        knobs=options_of(Ddp, Exchange, without="init_sync", compression=COMPRESSIONS[1:]) | TORCHRUN,
        sweep=({"gradient_as_bucket_view": True}, {"bucket_cap_mb": 5.0}, {"overlap": False}),
        gradient_copy="buckets", norm_buffers="broadcasts rank 0's, as ddp does",
    ),
    "fsdp": ModeInfo(
        "weights, gradients and optimizer state sharded, block by block: fully_shard",
        PlotStyle("#D55E00", "+++", "X", (0, (5, 1))), ("torchrun", "spawn"), on_request=True,
        shards=("weights", "gradients", "optimizer state"),
        no_compile="the weights of a block are gathered by Python code before it, which is not compiled",
        knobs=options_of(Fsdp) | TORCHRUN,
        sweep=({"reshard": False}, {"prefetch": 1}, {"prefetch": 2}, {"reshard": False, "prefetch": 1}),
        sweep_on_gpu=({"param_dtype": "bf16"}, {"param_dtype": "bf16", "reduce_dtype": "fp32"}),
        on_gpu=({"reshard": False}, {"prefetch": 1}, {"precision": "bf16", "param_dtype": "bf16"}),
        norm_buffers="leaves each rank its own, and they drift apart",
    ),
    "local": ModeInfo(
        "each rank steps separately, weights averaged every few steps: NOT the same update",
        PlotStyle("#F0E442", "---", "h", (0, (4, 2, 1, 2))), ("torchrun", "spawn"), on_request=True, same_update=False,
        knobs=options_of(Local) | {"sync": None} | TORCHRUN,
        sweep=tuple({"local_steps": steps} for steps in (1, 2, 4, 8, 16)),
        norm_buffers="averages them with the weights",
    ),
    "independent": ModeInfo(
        "one process per device, no communication: a baseline", PlotStyle("#CC79A7", "xxx", "v", ":"),
        ("torchrun", "spawn"), baseline=True, knobs=TORCHRUN,
    ),
}  # fmt: skip

TRAINABLE = [mode for mode, info in MODES.items() if not info.baseline]  # to train
COMPARED = [mode for mode in TRAINABLE if not MODES[mode].on_request]  # the default of MODES in studies
UPPER_BOUNDS = [mode for mode, info in MODES.items() if info.baseline]
