from bench.mistakes.base import Evidence, mistake


@mistake(
    "validation examples counted more than once",
    "the metric weights some examples more than others, and changes with the number of ranks",
    "shard validation without padding (every N-th example), or drop the padding before counting",
    needs="reported val_images|validations",
    case="wrong/counted_by_every_rank",
)
def counted_twice(observed: dict) -> str | Evidence | None:
    """A sampler pads the last batch. If the counts are unknown, it is a possible mistake."""
    reported = observed.get("reported") or {}
    counted, whole = [n for rank in reported.get("images", []) for n in rank], reported.get("val_images")
    if whole and counted and max(counted) <= whole:
        return None
    if whole and counted:
        return f"{max(counted)} examples were counted, but the validation set has {whole}"
    for each in observed.get("validations") or []:
        if each["shared"]:
            return Evidence(
                f"a validation drew {each['draws']} times from {each['examples']} examples, and drew {each['shared']} "
                "of them more than once",
                "are the repeated examples dropped before the ranks' metrics are summed?",
            )
    return None
