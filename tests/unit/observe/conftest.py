"""A Watch of a test observes nothing of the next one, and prints nothing when the interpreter ends."""

import gc
import threading

import pytest
import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from bench.observe import waits, writers
from bench.observe.hang import Hang
from bench.observe.probe import hooked_functions
from bench.observe.watch import exits


@pytest.fixture(scope="module", autouse=True)
def few_objects():
    """A Watch looks for schedulers among all objects of Python: but not among those that are frozen here."""
    import torch._dynamo  # noqa: F401 (which a Watch needs, with 100,000 objects)

    gc.freeze()


def functions() -> tuple:
    """Those that probes put others in place of, and what listens."""
    methods = [vars(torch.Tensor).get(name) for name in waits.WAITS]
    hooked = {key: len(function.listeners) for key, function in hooked_functions.items()}
    own = torch.save, torch.load, torch.nn.Module.load_state_dict, _BaseDataLoaderIter._next_index
    return own, methods, hooked, list(writers.listeners)


@pytest.fixture(autouse=True)
def untouched():
    """A Watch that is not reported is taken down. Then torch is itself again, and no thread looks for a hang."""
    before = functions()
    yield
    while exits:
        watch = exits.pop()
        watch.probe(Hang).over.set()
        watch.part()
    assert functions() == before
    for thread in threading.enumerate():
        if thread.name == "bench-watch":
            thread.join(30)
            assert not thread.is_alive()
