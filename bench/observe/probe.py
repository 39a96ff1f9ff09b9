"""What every probe of a Watch is: one thing that is seen of a training, put up, told what happens, and taken down.

A probe changes nothing in what is computed, draws no random number, and speaks to no other rank: what the ranks saw is
put together at the end (bench/observe/together.py).
"""

from collections.abc import Callable
from typing import ClassVar

from bench.observe.listening import listen
from bench.structure import parameters_of


class Unheard(Exception):
    """Why something was not observed, in a few words: as a rank's part, or raised by a join."""


class Probe:
    """One thing that a Watch (bench/observe/watch.py) sees.

    It is told what happens by the methods below, which do nothing here. What one of them raises never reaches the
    script: the probe is deaf from then on, and says so. A function that it gives to torch itself, a hook or a stand-in,
    is ``guarded``; ``listen`` does it.

    joins: for each key of ``observed`` (bench/record/observed.py) that comes from here, the function that makes it of
    the ranks' parts, a list by rank. It may return None or raise ``Unheard``. silent: why a part is None, in words.
    """

    joins: ClassVar[dict[str, Callable[[list], object]]] = {}
    silent: ClassVar[dict[str, str]] = {}

    def __init__(self, watch):
        self.watch, self.listening = watch, []

    def guarded(self, function: Callable) -> Callable:
        return self.watch.guarded(self, function)

    def listen(self, owner, name: str, *listeners: Callable) -> None:
        """``listening.listen`` with methods of this probe, until ``close``."""
        self.listening.append(listen(owner, name, *map(self.guarded, listeners)))

    def follow(self, model, optimizer) -> None:
        """Model and optimizer are known, as the script uses them."""

    def begin(self, loader) -> None:
        """The first epoch of all begins."""

    def start(self) -> None:
        """The training starts: model and optimizers have their state from the start."""

    def before_iter(self, epoch) -> None:
        """An epoch (bench/observe/view.py) begins: ``iter(loader)`` is called next."""

    def after_iter(self, epoch, iterator) -> None:
        """``iter(loader)`` has returned its iterator; None: it raised."""

    def asked(self, epoch) -> None:
        """The script waits for a batch: ``next(iterator)`` is called next."""

    def drawn(self, epoch, iterator, indices) -> None:
        """torch's iterator has drawn the indices of a batch, which is fetched next, or later by a worker."""

    def fetched(self, epoch, batch) -> None:
        """A batch is there, and is handed to the script next."""

    def trained(self, epoch) -> None:
        """The script asks for the next batch, or has ended: it is done with this one."""

    def epoch_ended(self, epoch) -> None:
        """The epoch is over, at its end or before."""

    def before_step(self, optimizer) -> None:
        """An optimizer's step begins: any optimizer's of the process, and Horovod steps twice."""

    def after_step(self, optimizer) -> None:
        """An optimizer's step has been taken."""

    def metric(self, values: dict) -> None:
        """The script says what it would print of an epoch."""

    def close(self) -> None:
        """Take everything down: before ``part``, or when enough was seen."""
        for end in self.listening:
            end()
        self.listening = []

    def part(self) -> dict:
        """This rank's part for each key of ``joins``; None or an ``Unheard`` for what was not seen."""
        return {}


def held_by(optimizer) -> set[int]:
    """The ids of an optimizer's parameters."""
    return set(map(id, parameters_of(optimizer)))
