"""bench/observe/view.py: `watch(loader)` behaves like the loader, and reports what happens."""

import gc
import itertools
import weakref

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe.view import view_of

DATA = TensorDataset(torch.arange(10))


class Told:
    """A watch that writes down what it gets."""

    def __init__(self):
        self.events = []

    def begin(self, loader) -> None: ...

    def notify(self, what: str, epoch, *arguments) -> None:
        self.events.append((what, epoch.taken, epoch.whole))


def test_a_view_has_the_loader_class_length_and_attributes():
    loader = DataLoader(DATA, 4, sampler=DistributedSampler(DATA, 2, 0))
    view = view_of(Told(), loader)
    assert isinstance(view, DataLoader) and len(view) == 2 and view.sampler is loader.sampler
    view.sampler.set_epoch(3)
    view.worker_init_fn = print
    assert loader.sampler.epoch == 3 and loader.worker_init_fn is print
    with pytest.raises(ValueError):
        view.dataset = None
    assert len(iter(view)) == 2  # as of torch's iterator


@pytest.mark.parametrize("make", [lambda: iter([1, 2, 3]), lambda: (n for n in (1, 2, 3)), lambda: [1, 2, 3]])
def test_any_iterable_is_walked_and_has_no_length_that_it_lacks(make):
    loader, told = make(), Told()
    view = view_of(told, loader)
    assert hasattr(view, "__len__") == hasattr(loader, "__len__")
    assert hasattr(view, "__next__") == hasattr(loader, "__next__")
    assert list(view) == [1, 2, 3]
    assert told.events[-1] == ("epoch_ended", 3, True)
    names = [name for name, *_ in told.events]
    assert names[:4] == ["before_iter", "after_iter", "fetch_begins", "fetched"] and names.count("trained") == 3
    if hasattr(make(), "__next__"):
        assert next(view_of(told, make())) == 1
    else:
        assert view[1] == 2 and 3 in view
    for _ in itertools.islice(view_of(told, make()), 2):  # left early
        pass
    assert told.events[-2:] == [("trained", 2, False), ("epoch_ended", 2, False)]


def test_errors_of_a_loader_pass_and_its_iterator_lives_no_longer_than_the_script_wants():
    class Failing:
        def __getitem__(self, index: int):
            raise OSError("unreadable")

        def __len__(self) -> int:
            return 2

    walk = iter(view_of(Told(), DataLoader(Failing())))
    with pytest.raises(OSError):
        next(walk)
    loader = DataLoader(DATA, 2)
    walk = iter(view_of(Told(), loader))
    next(walk)
    inner = weakref.ref(walk._iterator)
    gc.disable()
    try:
        del walk
        assert inner() is None
    finally:
        gc.enable()
