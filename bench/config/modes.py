"""The table of modes: what must be known of a mode before its processes exist. It imports no torch.

To add a mode: write its file in bench/modes, add its line here, and add its row to the equivalence test.
"""

from dataclasses import dataclass, field

LAUNCHERS = ("in-process", "torchrun", "spawn", "horovodrun")


@dataclass(frozen=True)
class ModeInfo:
    """One line of the table.

    launchers: who can start it, the default first. knobs: the options of RunConfig that only some modes have and this
    one has, with the values it takes beside the default (None: any). tuned: what TUNED=1 sets among them, without
    changing the mathematics of the step.
    """

    summary: str
    launchers: tuple[str, ...]
    one_process: bool = False
    baseline: bool = False
    max_devices: int | None = None
    needs: str | None = None  # a package beyond torch
    sync_norm: bool = True  # takes NORM=sync
    compiles: bool = True  # torch.compile can be had
    knobs: dict = field(default_factory=dict)
    tuned: dict = field(default_factory=dict)


DDP_KNOBS = {"bucket_cap_mb": None, "gradient_as_bucket_view": None, "static_graph": None, "broadcast_buffers": None,
             "overlap": None, "sync": None, "init_sync": None, "compression": ("fp16", "bf16", "powersgd")}  # fmt: skip
HOROVOD_KNOBS = {"fusion_mb": None, "cycle_time_ms": None, "autotune": None, "adasum": None, "overlap": None,
                 "sync": None, "init_sync": None, "compression": ("fp16",)}  # fmt: skip


# A gradient is stored once, inside its bucket, and the unused-parameter bookkeeping is skipped. Horovod's background
# thread wakes every 25 ms instead of every one: it takes the core from the training thread less often and sends larger
# reductions, and the last one of a step waits for it 25 ms at most.
DDP_TUNED = {"gradient_as_bucket_view": True, "static_graph": True}
HOROVOD_TUNED = {"cycle_time_ms": 25.0}

MODES = {
    "single": ModeInfo("one process, one device", ("in-process",), one_process=True, max_devices=1),
    "dp": ModeInfo("nn.DataParallel: one process, one thread a device", ("in-process",), one_process=True,
                   sync_norm=False, compiles=False),
    "ddp": ModeInfo("DistributedDataParallel: one process a device", ("torchrun", "spawn"), knobs=DDP_KNOBS,
                    tuned=DDP_TUNED),
    "horovod": ModeInfo("Horovod: one process a device", ("horovodrun",), needs="horovod", knobs=HOROVOD_KNOBS,
                        tuned=HOROVOD_TUNED),
    "independent": ModeInfo("one process a device, no communication: the bound", ("torchrun", "spawn"), baseline=True),
}  # fmt: skip
