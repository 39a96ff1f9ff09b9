"""How rank 0 puts together what the ranks saw: ``observed`` (bench/record/observed.py) of their parts."""

from collections.abc import Callable

import numpy as np

from bench.observe.probe import Unheard


def put_together(parts: list[dict], known: dict, joins: dict[str, Callable]) -> tuple[dict, dict[str, str]]:
    """``observed`` of the ranks' parts, and for what was not observed by all of them the reason, if one is known.

    known: what is known besides the parts. joins: key of observed -> the function that makes it of a list by rank.
    """
    observed, unheard = {"world_size": len(parts), **known}, {}
    for name, join in joins.items():
        own = [part.get(name) for part in parts]
        try:
            for part in own:
                if isinstance(part, Unheard):
                    raise part
            if all(part is not None for part in own):
                observed[name] = join(own)
        except Unheard as why:
            unheard[name] = str(why)
    return {name: value for name, value in observed.items() if value is not None}, unheard


def columns(parts: list[dict]) -> dict[str, list]:
    """A list by rank for each key that all ranks have."""
    return {key: [part[key] for part in parts] for key in parts[0] if all(key in part for part in parts)}


def finite(value) -> float | None:
    """A number that JSON has; None for one that is not finite."""
    return float(value) if np.isfinite(value) else None
