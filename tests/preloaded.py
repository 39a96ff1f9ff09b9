"""Imported by servers that fork ranks: what ranks import, and what each would read again."""

import contextlib
import functools
import gc
import importlib
from importlib import metadata

from bench.predict.emulation.rank import leave_cores
from bench.workload.images.digits import read_digits

for name in (
    "torch.distributed.fsdp", "torch.distributed.optim", "torch._dynamo", "torch.profiler", "torchvision",
    "horovod.torch", "bench.worker", "bench.training.task", "bench.training.build", "bench.training.measuring",
    "bench.training.observer", "bench.modes.ddp", "bench.modes.fsdp", "bench.modes.zero1", "bench.modes.dp",
    "bench.workload.own_code", "bench.record.definition", "msgspec.json", "numpy.ma", "torch.utils.serialization",
    "bench.workload.images.augment", "bench.workload.models.torchvisions",
):  # fmt: skip
    with contextlib.suppress(Exception):
        importlib.import_module(name)

metadata.entry_points = functools.cache(metadata.entry_points)  # torch would read every package's for each group
metadata.entry_points(group="torch.distributed.backends")
read_digits()
leave_cores()  # tests share their cores
gc.freeze()  # no rank looks for garbage among what was imported, nor gets its own pages by that
