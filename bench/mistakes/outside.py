"""Parameters that an optimizer trains and the model does not hold, as those of a loss that has weights."""

from bench.mistakes.base import Finding

CONSEQUENCE = "every rank trains values of its own there, and a checkpoint holds those of one rank"
REMEDY = (
    "wrap the module that holds them in DistributedDataParallel, too; or broadcast them before the first step, and "
    "average their gradients over the ranks before every step"
)
ASKS = "are they meant to be each rank's own, as its part of a layer that is cut over the ranks?"


def finding(name: str, title: str, evidence: str, observed: dict) -> Finding:
    """What is wrong with them; a question where the ranks send something between forward and backward, as for a layer
    that is cut over them."""
    gathers = (observed.get("gradient") or {}).get("gathers")
    return Finding(name, title, evidence, CONSEQUENCE, REMEDY, ASKS if gathers else "")


def apart(observed: dict) -> list[str]:
    """The parameters that are the first to differ by rank, where none of them is the model's."""
    weights = observed.get("weights") or {}
    layers = weights.get("layers", [])
    return layers if set(layers) <= set(weights.get("outside", [])) else []


def some(names: list[str]) -> str:
    """The first names, and whether there are more."""
    return ", ".join(names[:3]) + (f", … ({len(names)} in all)" if len(names) > 3 else "")
