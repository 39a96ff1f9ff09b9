"""``watch(loader)``: a proxy of the loader that notifies a Watch of each epoch and each batch."""

from collections.abc import Callable


class Epoch:
    """One iteration over a loader. loader: until its iterator has been created. taken: batches. whole: it was iterated
    to its end. ended: it has ended. optimizer_steps: of any optimizer, during it. evaluates: a batch was fetched in
    evaluation mode or without gradients."""

    def __init__(self, loader):
        self.loader, self.taken, self.whole, self.ended, self.optimizer_steps = loader, 0, False, False, 0
        self.evaluates = False


def chosen(epochs: list[Epoch]) -> list[Epoch]:
    """The training epochs: those with optimizer steps; if a script takes its steps outside of epochs, all that do not
    evaluate."""
    return [epoch for epoch in epochs if epoch.optimizer_steps] or [epoch for epoch in epochs if not epoch.evaluates]


class Walked:
    """The notifications of one iteration over a loader. It keeps neither loader nor iterator."""

    def __init__(self, notify: Callable, loader):
        self.notify, self.epoch, self.given = notify, Epoch(loader), False

    def begin(self, make: Callable):
        iterator = None
        self.notify("before_iter", self.epoch)
        try:
            iterator = make()
        finally:
            self.notify("after_iter", self.epoch, iterator)
            self.epoch.loader = None
        return iterator

    def step(self, fetch: Callable):
        self.trained()
        self.notify("fetch_begins", self.epoch)
        try:
            batch = fetch()
        except StopIteration:
            self.epoch.whole = not self.epoch.ended
            self.end()
            raise
        self.epoch.taken += 1
        self.given = True
        self.notify("fetched", self.epoch, batch)
        return batch

    def trained(self) -> None:
        if self.given:
            self.given = False
            self.notify("trained", self.epoch)

    def end(self) -> None:
        if not self.epoch.ended:
            self.trained()
            self.notify("epoch_ended", self.epoch)
            self.epoch.ended = True

    __del__ = end


class Walk:
    def __init__(self, notify: Callable, loader):
        self._walked = Walked(notify, loader)
        self._iterator = self._walked.begin(lambda: iter(loader))
        if hasattr(type(self._iterator), "__len__"):
            self.__class__ = SizedWalk

    def __iter__(self) -> "Walk":
        return self

    def __next__(self):
        return self._walked.step(lambda: next(self._iterator))

    def __getattr__(self, name: str):
        if name in ("_walked", "_iterator"):  # not set yet
            raise AttributeError(name)
        return getattr(self._iterator, name)


class SizedWalk(Walk):
    def __len__(self) -> int:
        return len(self._iterator)


class View:
    def __init__(self, watch, loader):
        vars(self).update(_watch=watch, _loader=loader)

    def __iter__(self) -> Walk:
        self._watch.begin(self._loader)
        return Walk(self._watch.notify, self._loader)

    @property
    def __class__(self):
        return type(self._loader)

    def __getattr__(self, name: str):
        if name in ("_watch", "_loader"):  # not set yet: while it is copied
            raise AttributeError(name)
        return getattr(self._loader, name)  # sampler, batch_size, …

    def __setattr__(self, name: str, value) -> None:
        setattr(self._loader, name, value)


def next_of(view: View):
    if "_walk" not in vars(view):
        vars(view)["_walk"] = iter(view)
    return next(vars(view)["_walk"])


def passed(name: str) -> Callable:
    return lambda view, *arguments: getattr(view._loader, name)(*arguments)


def view_of(watch, loader) -> View:
    own = {name: passed(name) for name in ("__len__", "__getitem__", "__contains__") if hasattr(type(loader), name)}
    if hasattr(type(loader), "__next__"):
        own["__next__"] = next_of
    return type("View", (View,), own)(watch, loader)
