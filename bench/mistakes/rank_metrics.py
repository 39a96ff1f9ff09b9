"""A rank's own metric called the global one: ``print(f"accuracy {hits / images}")`` without an all_reduce."""

import math

from bench.mistakes.base import EPOCHS, SEVERAL_PROCESSES, VALIDATION, Lab, Mistake
from bench.mistakes.measures import Measure, of_epoch, ranks_metric


def sum_counts(script, counts):
    """Each rank's figure is of its share."""
    return counts


def detect(observed: dict) -> str | None:
    """Ranks that report different figures, or each counted but a share of the validation examples."""
    reported, ranks = observed.get("reported", {}), observed.get("world_size", 1)
    for name, values in reported.items():
        columns = [] if name == "val_images" else list(zip(*values, strict=False))  # one per epoch
        differing = [epoch for epoch, column in enumerate(columns, 1) if differ(column)]
        if differing:
            epoch = differing[-1]  # they may agree by chance in others
            said = ", ".join("not finite" if value is None else f"{value:.6g}" for value in columns[epoch - 1])
            when = "in the last epoch" if epoch == len(columns) else f"in epoch {epoch}"
            return f"{name} differs by rank: {said} {when}"
    counted = [n for rank in reported.get("images", []) for n in rank]
    whole = reported.get("val_images")
    if ranks > 1 and whole and counted and min(counted) < whole * (1 + 1 / ranks) / 2:  # nearer a share than the whole
        return f"a rank counted {min(counted)} of {whole} validation examples"
    return None


def differ(values: tuple) -> bool:
    """Whether numbers are not all the same but for rounding. In a record None is a number that is not finite."""
    known = {value is not None and math.isfinite(value) for value in values}
    if len(known) > 1:
        return True
    return known == {True} and not all(math.isclose(v, values[0], rel_tol=1e-6, abs_tol=1e-12) for v in values)


def spread(record, observed) -> float | None:
    """Between the highest and the lowest value of the workload's metric that a rank reports."""
    values = ranks_metric(record, observed)
    return max(values) - min(values) if values else None


MISTAKE = Mistake(
    "rank-metrics",
    "a rank's own metric called the global one",
    "the figure is of a part of the validation examples, and differs by rank",
    "sum the counts over ranks (all_reduce) and divide once",
    detect,
    needs="reported",
    overrides={"sum_counts": sum_counts},
    requires=(SEVERAL_PROCESSES, EPOCHS, VALIDATION),
    lab=Lab(
        "What is printed when the counts are not summed over ranks?",
        "Each rank's log has another figure, and its steps are coarser: a share of the examples was counted.",
        (
            Measure("{points} between the highest and the lowest rank", spread, "up"),
            Measure("validation examples behind the reported figure", of_epoch("images", -1), "down", ".0f"),
        ),
        shows="ranks",
    ),
)
