from bench.mistakes.base import mistake, some


@mistake(
    "gradients that are not zeroed between two steps",
    "each step uses the sum of all gradients since the last zeroing: it is longer than intended, in an old direction",
    "call zero_grad on every optimizer once per step, before the first backward or after the step",
    needs="zero_grad",
    case="wrong/zero_forgotten",
)
def no_zero_grad(observed: dict) -> str | None:
    kept = (observed.get("zero_grad") or {}).get("kept")
    if not kept:
        return None
    plural = "s" * (len(kept) > 1)
    return f"backward added to the previous step's values in {len(kept)} gradient{plural}: {some(kept)}"
