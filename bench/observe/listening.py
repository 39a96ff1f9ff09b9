"""Hearing the calls of a function of torch's, for a while: what it gets, returns and raises stays as it is.

The same function may be heard by several listeners, which come and go in any order. While nobody listens torch has its
own function back, unless somebody else has put a stand-in over ours meanwhile: then it only passes calls on.
"""

import functools
from collections.abc import Callable

heard = {}  # (owner, name) -> Heard, of what is listened to now


class Heard:
    """A function whose calls are heard. owner: a module or a class; name: its attribute."""

    def __init__(self, owner, name: str):
        self.owner, self.name, self.listeners = owner, name, []
        self.own, function = vars(owner).get(name), getattr(owner, name)

        @functools.wraps(function)
        def stand_in(*arguments, **options):
            listeners = tuple(self.listeners)
            then = [after for listener, _ in listeners if (after := listener(arguments, options))]
            try:
                result = function(*arguments, **options)
            except BaseException as error:
                for _, raised in listeners:
                    raised(error, arguments)
                raise
            for after in then:
                after(result)
            return result

        self.stand_in = stand_in
        setattr(owner, name, stand_in)

    def end(self) -> None:
        """Nobody listens any more."""
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
