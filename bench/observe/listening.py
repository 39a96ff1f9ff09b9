"""Hearing the calls of a function of torch's, for a while: what it gets, returns and raises stays as it is.

The same function may be heard by several listeners, which come and go in any order. While nobody listens torch has its
own function back, unless somebody else has put a stand-in over ours meanwhile: then it only passes calls on.

torch.compile sees torch's own function: a stand-in is neither traced nor compiled, and calls in a graph are not heard.
"""

import contextlib
import functools
import sys
from collections.abc import Callable

import torch
from torch.nn.parallel import DistributedDataParallel

# The methods of DistributedDataParallel with which a pass begins and ends: torch.compile looks at forward itself.
BEGINS, ENDS = (
    name if hasattr(DistributedDataParallel, name) else "forward" for name in ("_pre_forward", "_post_forward")
)

heard = {}  # (owner, name) -> Heard, of what is listened to now


def uncompiled(function: Callable) -> Callable:
    """A function that Dynamo runs as it is, with all that it calls."""
    return torch.compiler.disable(function) if "torch._dynamo" in sys.modules else function


def skipped(stand_in: Callable) -> Callable:
    """A stand-in that Dynamo does not compile; what it calls it does. In a trace it must pass calls on by itself."""
    if "torch._dynamo" in sys.modules:  # an optimizer imports it
        with contextlib.suppress(ImportError):  # torch's name for it is its own
            from torch._dynamo.eval_frame import skip_code

            skip_code(stand_in.__code__)
    return stand_in


class Heard:
    """A function whose calls are heard. owner: a module or a class; name: its attribute."""

    def __init__(self, owner, name: str):
        self.owner, self.name, self.listeners = owner, name, []
        self.own, function = vars(owner).get(name), getattr(owner, name)
        before, after, failed = (uncompiled(part) for part in (self.before, self.after, self.failed))

        @functools.wraps(function)
        def stand_in(*arguments, **options):
            if torch.compiler.is_compiling():
                return function(*arguments, **options)
            told = before(arguments, options)
            try:
                result = function(*arguments, **options)
            except BaseException as error:
                failed(told, error, arguments)
                raise
            after(told, result)
            return result

        self.stand_in = skipped(stand_in)
        setattr(owner, name, stand_in)

    def before(self, arguments: tuple, options: dict) -> tuple:
        """Returns who is told of the call's end, and how."""
        listeners = tuple(self.listeners)
        return listeners, [then for listener, _ in listeners if (then := listener(arguments, options))]

    def after(self, told: tuple, result) -> None:
        for then in told[1]:
            then(result)

    def failed(self, told: tuple, error: BaseException, arguments: tuple) -> None:
        for _, raised in told[0]:
            raised(error, arguments)

    def end(self) -> None:
        if vars(self.owner).get(self.name) is self.stand_in:
            if self.own is None:  # inherited
                delattr(self.owner, self.name)
            else:
                setattr(self.owner, self.name, self.own)


def listen(owner, name: str, listener: Callable, raised: Callable = lambda error, arguments: None) -> Callable:
    """Have ``listener(arguments, options)`` called before every call of ``owner.name``, for a method with the object
    first; what it returns, if anything, is called with the result. ``raised(error, arguments)`` is called where there
    is none. None of them may raise (``Watch.guarded``).

    Returns the function that ends it.
    """
    there = heard.get((owner, name))
    if there is None:
        there = heard[owner, name] = Heard(owner, name)
    pair = listener, raised
    there.listeners.append(pair)

    def end() -> None:
        if pair in there.listeners:
            there.listeners.remove(pair)
        if not there.listeners and heard.get((owner, name)) is there:
            del heard[owner, name]
            there.end()

    return end
