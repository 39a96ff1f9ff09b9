"""``watch(loader)``: the loader's batches as the script gets them, and what the Watch is told meanwhile."""

from collections.abc import Iterator


class View:
    """A loader as it is, but that a Watch is told of each epoch and each batch."""

    def __init__(self, watch, loader):
        self.watch, self.loader = watch, loader

    def __iter__(self) -> Iterator:
        """The batches of one epoch."""
        loader, tell = self.loader, self.watch.tell
        self.watch.begin(loader)
        iterator, taken, whole = None, 0, False
        tell("before_iter", loader)
        try:
            iterator = iter(loader)
        finally:
            tell("after_iter", loader, iterator)
        try:
            while True:
                tell("asked", loader)
                try:
                    batch = next(iterator)
                except StopIteration:
                    whole = True
                    return
                taken += 1
                tell("fetched", loader, batch)
                yield batch
                tell("trained", loader, batch)
        finally:
            tell("epoch_ended", loader, taken, whole)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str):
        if name == "loader":  # not there yet: while it is copied
            raise AttributeError(name)
        return getattr(self.loader, name)  # sampler, batch_size, …
