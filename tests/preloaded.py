"""Imported by servers that fork ranks: what ranks import, and what each would read again or do at its end."""

import atexit
import contextlib
import functools
import gc
import importlib
import sys
import weakref
from importlib import metadata

from torch._dynamo import trace_rules, utils
from torch.distributed.elastic.rendezvous import dynamic_rendezvous

from bench.predict.emulation.rank import leave_cores
from bench.workload.images.digits import read_digits
from tests.pages import collapse_pages

for name in (
    "torch.distributed.fsdp", "torch.distributed.optim", "torch.profiler", "torchvision", "torch.distributed.run",
    "horovod.torch", "bench.worker", "bench.training.task", "bench.training.build", "bench.training.measuring",
    "bench.training.observer", "bench.modes.ddp", "bench.modes.fsdp", "bench.modes.zero1", "bench.modes.dp",
    "bench.workload.own_code", "bench.workload.images.augment", "bench.workload.models.torchvisions", "scipy.special",
    "bench.record.definition", "msgspec.json", "numpy.ma", "torch.utils.serialization",
):  # fmt: skip
    with contextlib.suppress(Exception):
        importlib.import_module(name)

metadata.entry_points = functools.cache(metadata.entry_points)  # torch would read every package's for each group
metadata.entry_points(group="torch.distributed.backends")
# torchrun would look through all modules for each frame of its stack, a second and a half in all.
dynamic_rendezvous.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name
atexit.unregister(utils.dump_compile_times)  # nobody compiles
trace_rules.clear_lru_cache()  # each rank would, when it joins a group
for imported in weakref.finalize._registry:
    imported.atexit = False  # no rank takes torch's libraries apart
read_digits()
leave_cores()  # tests share their cores
gc.freeze()  # no rank looks for garbage among what was imported, nor gets its own pages by that
collapse_pages()
