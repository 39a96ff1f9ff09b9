"""Imported by servers that fork ranks: what ranks import, and what each would read again or do at its end."""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import sys
import weakref
from importlib import metadata

import torch
from torch._dynamo import trace_rules, utils
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.utils.flop_counter import FlopCounterMode

from bench.measure import environment
from bench.predict.emulation.rank import leave_cores
from bench.workload.images.digits import read_digits
from tests import small_resnets

LARGE, MADV_COLLAPSE = 2 << 20, 25


def collapse_pages() -> None:
    """Put this process's memory into large pages: a fork then copies, and at its end takes apart, a third of what it
    would. A kernel before Linux 6.1, or another system, leaves all as it was."""
    madvise = ctypes.CDLL(None).madvise
    with contextlib.suppress(FileNotFoundError), open("/proc/self/maps") as file:
        for addresses, access, _, _, _, *path in map(str.split, file):
            if access.startswith("rw") and path in ([], ["[heap]"]):
                first, end = (int(address, 16) for address in addresses.split("-"))
                for block in range(-(-first // LARGE) * LARGE, end // LARGE * LARGE, LARGE):
                    madvise(ctypes.c_void_p(block), ctypes.c_size_t(LARGE), MADV_COLLAPSE)


for name in (
    "torch.distributed.fsdp", "torch.distributed.optim", "torch.profiler", "torchvision", "torch.distributed.run",
    "horovod.torch", "bench.worker", "bench.training.task", "bench.training.build", "bench.training.measuring",
    "bench.training.observer", "bench.modes.ddp", "bench.modes.fsdp", "bench.modes.zero1", "bench.modes.dp",
    "bench.workload.own_code", "bench.workload.images.augment", "bench.workload.models.torchvisions", "scipy.special",
    "bench.record.definition", "msgspec.json", "numpy.ma", "torch.utils.serialization", "bench.cli.actions.run",
    "bench.cli", "rich.progress", "rich.table", "horovod.runner.gloo_run", "horovod.runner.launch",
    "matplotlib.figure",
):  # fmt: skip
    with contextlib.suppress(Exception):
        importlib.import_module(name)

metadata.entry_points = functools.cache(metadata.entry_points)  # torch would read every package's for each group
metadata.entry_points(group="torch.distributed.backends")
metadata.version = functools.cache(metadata.version)  # each record has versions and the hash of the code
environment.package_versions()
environment.source_hash()
# torchrun would look through all modules for each frame of its stack, a second and a half in all.
dynamic_rendezvous.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name
atexit.unregister(utils.dump_compile_times)  # nobody compiles
trace_rules.clear_lru_cache()  # each rank would, when it joins a group
for imported in weakref.finalize._registry:
    imported.atexit = False  # no rank takes torch's libraries apart
read_digits()
with torch.random.fork_rng([]), FlopCounterMode(display=False):  # torch's first step takes as long as ten others
    for device in ("cpu", "meta"):
        small_resnets.smooth(10).to(device)(torch.randn(6, 3, 8, 8, device=device)).square().mean().backward()
leave_cores()  # tests share their cores
gc.freeze()  # no rank looks for garbage among what was imported, nor gets its own pages by that
collapse_pages()
