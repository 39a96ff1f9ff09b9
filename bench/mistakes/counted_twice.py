"""Validation examples that are counted more than once: a sampler pads the last batch, and the padding is counted."""

from bench.mistakes.base import Mistake


def detect(observed: dict) -> str | None:
    """More examples counted than the validation set has."""
    reported = observed.get("reported") or {}
    counted, whole = [n for rank in reported.get("images", []) for n in rank], reported.get("val_images")
    if not whole or not counted or max(counted) <= whole:
        return None
    return f"{max(counted)} examples were counted, of {whole} in the validation set"


MISTAKE = Mistake(
    "counted-twice",
    "validation examples counted more than once",
    "the figure weights some examples more than others, and changes with the number of ranks",
    "shard validation without padding (every N-th example), or drop the padding before counting",
    detect,
    needs="reported val_images",
    watched=True,
)
