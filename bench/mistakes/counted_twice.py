"""Validation examples that are counted more than once: a sampler pads the last batch, and the padding is counted."""

from bench.mistakes.base import Mistake, Question


def detect(observed: dict) -> str | Question | None:
    """Where the counts are not known, examples that several ranks draw of a set that they share out are a question."""
    reported = observed.get("reported") or {}
    counted, whole = [n for rank in reported.get("images", []) for n in rank], reported.get("val_images")
    if whole and counted and max(counted) <= whole:
        return None
    if whole and counted:
        return f"{max(counted)} examples were counted, of {whole} in the validation set"
    for each in observed.get("validations") or []:
        if each["shared"]:
            return Question(
                f"a validation drew {each['draws']} times from {each['examples']} examples; drawn more than once: "
                f"{each['shared']}",
                "are the repeated ones dropped before the figures of the ranks are summed?",
            )
    return None


MISTAKE = Mistake(
    "counted-twice",
    "validation examples counted more than once",
    "the figure weights some examples more than others, and changes with the number of ranks",
    "shard validation without padding (every N-th example), or drop the padding before counting",
    detect,
    needs="reported val_images|validations",
    watched=True,
)
