"""A rank's own metric called the global one: ``print(f"accuracy {hits / images}")`` without an all_reduce."""

import math

from bench.mistakes.base import EPOCHS, SEVERAL_PROCESSES, VALIDATION, Finding, Lab, Mistake
from bench.mistakes.measures import Measure, of_epoch, ranks_metric


def sum_counts(script, counts):
    return counts


def detect(observed: dict) -> str | Finding | None:
    """Where no metrics are known: a shared validation after which the ranks put nothing together."""
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
    return other_mean(reported, observed.get("trained"), ranks) or (None if reported else own_share(observed, ranks))


def own_share(observed: dict, ranks: int) -> Finding | None:
    """A validation that the ranks shared out, after which they sent each other nothing."""
    validated = observed.get("validated") or {}
    shared = [each for each in observed.get("validations") or [] if each.get("shared_out")]
    if ranks == 1 or not shared or not validated or validated["silent"] < validated["times"]:
        return None
    evidence = f"each rank validated a part of {shared[0]['examples']} examples, and the ranks sent each other nothing "
    evidence += "before the training went on or ended"
    return Finding(MISTAKE.name, MISTAKE.title, evidence, MISTAKE.consequence, MISTAKE.remedy,
                   "is each rank's figure meant to be of its own part?")  # fmt: skip


def other_mean(reported: dict, trained: dict | None, ranks: int) -> Finding | None:
    """A training loss that is the N-th part of the mean loss of the N ranks, or N times as much, each time that it was
    reported; or one of another number of examples than the ranks trained on."""
    names = [name for name in reported if "loss" in name.lower() and not any(each in name.lower() for each in HELD_OUT)]
    if not trained or not names or ranks == 1 or reported.get("val_images"):
        return None
    images = reported.get("images", [[]])[0]
    for name in names:
        for kind in ("loss", "by_examples"):
            means = [mean(column) for column in zip(*trained[kind], strict=False)]
            pairs = list(zip(reported[name][0], means, strict=False))
            for factor, words in ((1 / ranks, f"1/{ranks}"), (ranks, f"{ranks} times")):
                if pairs and all(near(said, expected, factor) for said, expected in pairs):
                    said, expected = pairs[-1]
                    evidence = f"{name} is {words} of the mean loss of the backward passes: {said:.4g}, not "
                    evidence += f"{expected:.4g}{of_examples(images, trained)}"
                    return asked(evidence, "is a sum of each rank divided by the examples of all?")
    for said, examples in zip(images, zip(*trained["examples"], strict=False), strict=False):
        if None not in examples and all(abs(said - each) > NEARLY * each for each in (*examples, sum(examples))):
            evidence = f"{names[0]} is reported for {said} examples; the ranks trained on {sum(examples)}"
            return asked(evidence, "is it the mean over these examples?")
    return None


def of_examples(images: list[int], trained: dict) -> str:
    """The examples that the last value is said to be of, beside those of a rank."""
    seen = (trained["examples"][0] or [None])[-1]
    return f"; it is reported for {images[-1]} examples, and rank 0 trained on {seen}" if images and seen else ""


def mean(values: tuple) -> float | None:
    return None if None in values else sum(values) / len(values)


def near(said: float | None, expected: float | None, factor: float) -> bool:
    """Whether a figure is a multiple of another, and not 0."""
    return bool(said and expected) and math.isclose(said, factor * expected, rel_tol=CLOSE)


def asked(evidence: str, question: str) -> Finding:
    return Finding(MISTAKE.name, "a figure that is divided by another number", evidence,
                   "the figure changes with the number of ranks",
                   "sum losses and counts over ranks (all_reduce), and divide once", question)  # fmt: skip


HELD_OUT = ("val", "test", "eval")  # in the names of figures that are not of the training
CLOSE = 0.01  # of a multiple of the mean loss
NEARLY = 0.1  # of the examples: batches that are dropped, and padding


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
    needs="reported|validated",
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
