"""The base class of a Watch's checks: each observes one thing, is attached, notified of events, and detached.

A check does not change the computation, draws no random number, and sends nothing to other ranks: rank 0 combines the
ranks' observations at the end.
"""

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch

from bench.structure import parameters_of


class NotObserved(Exception):
    """The reason why something was not observed, in a few words: as a rank's part, or raised by a join."""


class Probe:
    """One check of a Watch (bench/observe/watch.py).

    It is notified of events through those of these methods that it has. Their exceptions never reach the script: the
    probe is then not called again, and the report says so.

    follow(model, optimizer)         model and optimizer are known, as the script uses them
    begin(loader)                    the first epoch begins
    start()                          the training starts: model and optimizers have their initial state
    before_iter(epoch)               an epoch (bench/observe/view.py) begins: ``iter(loader)`` is called next
    after_iter(epoch, iterator)      ``iter(loader)`` has returned its iterator; None: it raised
    fetch_begins(epoch)              the script waits for a batch: ``next(iterator)`` is called next
    drawn(epoch, iterator, indices)  torch's iterator has drawn the indices of a batch, which is fetched later
    fetched(epoch, batch)            a batch has arrived; the script gets it next
    trained(epoch)                   the script requests the next batch, or has ended: this batch is finished
    epoch_ended(epoch)               the epoch has ended, completely or early
    before_step(optimizer)           a step of any optimizer of the process begins; Horovod steps twice
    after_step(optimizer)            an optimizer's step has been taken
    metric(values)                   the script reports the metrics of an epoch

    joins: for each key of ``observed`` (bench/record/observed.py) from here, the function that makes it from the ranks'
    parts, a list by rank. It may return None or raise ``NotObserved``. silent: why a part is None, in words.
    """

    joins: ClassVar[dict[str, Callable[[list], object]]] = {}
    silent: ClassVar[dict[str, str]] = {}

    def __init__(self, watch):
        self.watch, self.listening = watch, []
        self.setup()

    def setup(self) -> None:
        """The Watch is created."""

    def guarded(self, function: Callable) -> Callable:
        return self.watch.guarded(self, function)

    def listen(self, owner, name: str, *listeners: Callable) -> None:
        """``listen`` with methods of this probe, until ``close``."""
        self.listening.append(listen(owner, name, *map(self.guarded, listeners)))

    def close(self) -> None:
        """Detach all hooks and listeners: before ``part``, or after enough observations."""
        for end in self.listening:
            end()
        self.listening = []

    def part(self) -> dict:
        """This rank's part for each key of ``joins``; None or an ``NotObserved`` if it was not observed."""
        return {}


def held_by(optimizer) -> set[int]:
    return set(map(id, parameters_of(optimizer)))


# --- calls of torch's functions -----------------------------------------------------------------------------------

# The methods of DistributedDataParallel with which a pass begins and ends: torch.compile traces forward itself.
BEGINS, ENDS = "_pre_forward", "_post_forward"
hooked_functions = {}  # (owner, name) -> CallHook, for every function that has a listener now


def uncompiled(function: Callable) -> Callable:
    """A function that Dynamo runs uncompiled, with everything that it calls."""
    return torch.compiler.disable(function) if "torch._dynamo" in sys.modules else function


def skipped(stand_in: Callable) -> Callable:
    """A replacement that Dynamo does not compile, although it compiles what it calls. In a trace it must pass calls
    on by itself."""
    if "torch._dynamo" in sys.modules:  # an optimizer imports it
        with contextlib.suppress(ImportError):  # a private name of torch's
            from torch._dynamo.eval_frame import skip_code

            skip_code(stand_in.__code__)
    return stand_in


class CallHook:
    """A function replaced by one that notifies listeners of its calls. owner: a module or a class.

    torch.compile gets torch's own function: the replacement is neither traced nor compiled, and calls in a graph are
    not observed.
    """

    def __init__(self, owner, name: str):
        self.owner, self.name, self.listeners = owner, name, []
        self.own, function = vars(owner).get(name), getattr(owner, name)
        before, after, failed = map(uncompiled, (self.before, self.after, self.failed))

        @functools.wraps(function)
        def stand_in(*arguments, **options):
            if torch.compiler.is_compiling():
                return function(*arguments, **options)
            listeners, ends = before(arguments, options)
            try:
                result = function(*arguments, **options)
            except BaseException as error:
                failed(listeners, error, arguments)
                raise
            after(ends, result)
            return result

        self.stand_in = skipped(stand_in)
        setattr(owner, name, stand_in)

    def before(self, arguments: tuple, options: dict) -> tuple:
        listeners = tuple(self.listeners)
        return listeners, [then for listener, _ in listeners if (then := listener(arguments, options))]

    def after(self, ends: list, result) -> None:
        for then in ends:
            then(result)

    def failed(self, listeners: tuple, error: BaseException, arguments: tuple) -> None:
        for _, raised in listeners:
            raised(error, arguments)

    def end(self) -> None:
        """Restore torch's function. If other code has replaced ours meanwhile, it stays and passes calls on."""
        if vars(self.owner).get(self.name) is self.stand_in:
            if self.own is None:  # inherited
                delattr(self.owner, self.name)
            else:
                setattr(self.owner, self.name, self.own)


def listen(owner, name: str, listener: Callable, raised: Callable = lambda error, arguments: None) -> Callable:
    """Call ``listener(arguments, options)`` before every call of ``owner.name``, with the object first if it is a
    method; if it returns a function, that is called with the result. ``raised(error, arguments)`` is called instead if
    the call raises. None of them may raise (``Watch.guarded``). Listeners may be added and removed in any order.

    Returns a function that removes the listener.
    """
    there = hooked_functions.get((owner, name))
    if there is None:
        there = hooked_functions[owner, name] = CallHook(owner, name)
    pair = listener, raised
    there.listeners.append(pair)

    def end() -> None:
        if pair in there.listeners:
            there.listeners.remove(pair)
        if not there.listeners and hooked_functions.get((owner, name)) is there:
            del hooked_functions[owner, name]
            there.end()

    return end


# --- the parts of all ranks ---------------------------------------------------------------------------------------


def join_parts(parts: list[dict], known: dict, joins: dict[str, Callable]) -> tuple[dict, dict[str, str]]:
    """``observed`` from the ranks' parts, and the known reasons for keys that not all ranks observed.

    known: further entries. joins: key of observed -> the function that makes it from a list by rank.
    """
    observed, reasons = {"world_size": len(parts), **known}, {}
    for name, join in joins.items():
        own = [part.get(name) for part in parts]
        try:
            if reason := next((part for part in own if isinstance(part, NotObserved)), None):
                raise reason
            if all(part is not None for part in own):
                observed[name] = join(own)
        except NotObserved as why:
            reasons[name] = str(why)
    return {name: value for name, value in observed.items() if value is not None}, reasons


def columns(parts: list[dict]) -> dict[str, list]:
    return {key: [part[key] for part in parts] for key in parts[0] if all(key in part for part in parts)}


def finite(value) -> float | None:
    """The number, or None if it is not finite, because JSON cannot represent it."""
    return float(value) if np.isfinite(value) else None
