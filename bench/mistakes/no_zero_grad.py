"""Steps with gradients of earlier steps: ``loss.backward(); optimizer.step()`` without ``optimizer.zero_grad()``."""

from bench.mistakes.base import Mistake
from bench.mistakes.outside import some


def detect(observed: dict) -> str | None:
    seen = observed.get("zero_grad") or {}
    if not seen.get("kept"):
        return None
    count = len(seen["kept"])
    return (
        f"backward added to what the step before had left in {count} gradient{'s' * (count > 1)}: {some(seen['kept'])}"
    )


MISTAKE = Mistake(
    "no-zero-grad",
    "gradients that are not zeroed between two steps",
    "each step has the sum of all gradients since they were zeroed last: it is longer than meant, in an old direction",
    "call zero_grad on every optimizer once per step, before the first backward or after the step",
    detect,
    needs="zero_grad",
    watched=True,
)
