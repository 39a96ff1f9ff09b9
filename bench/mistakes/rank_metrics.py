import math

from bench.mistakes.base import EPOCHS, SEVERAL_PROCESSES, VALIDATION, Evidence, Lab, mistake
from bench.mistakes.measures import Measure, of_epoch, ranks_metric

HELD_OUT = ("val", "test", "eval")  # in the names of metrics that are not of the training


CLOSE = 0.01  # of a multiple of the mean loss


NEARLY = 0.1  # of the examples: dropped batches, and padding


def sum_counts(script, counts):
    return counts


def own_share(observed: dict, ranks: int) -> Evidence | None:
    """A sharded validation after which the ranks exchanged nothing."""
    validated = observed.get("validated") or {}
    shared = [each for each in observed.get("validations") or [] if each.get("shared_out")]
    if ranks == 1 or not shared or not validated or validated["silent"] < validated["times"]:
        return None
    evidence = f"each rank validated a part of {shared[0]['examples']} examples, but the ranks exchanged nothing "
    evidence += "before the training continued or ended"
    return Evidence(evidence, "is each rank's metric intended to cover only its own part?")


def other_mean(reported: dict, trained: dict | None, ranks: int) -> Evidence | None:
    """A training loss that is 1/N or N times the mean loss of the N ranks each time it was reported; or one over
    another number of examples than the ranks trained on."""
    names = [name for name in reported if "loss" in name.lower() and not any(each in name.lower() for each in HELD_OUT)]
    if not trained or not names or ranks == 1 or reported.get("val_images"):
        return None
    images = reported.get("images", [[]])[0]
    for name in names:
        for kind in ("loss", "by_examples"):
            columns = zip(*trained[kind], strict=False)
            means = [None if None in column else sum(column) / len(column) for column in columns]
            pairs = list(zip(reported[name][0], means, strict=False))
            for factor, words in ((1 / ranks, f"1/{ranks}"), (ranks, f"{ranks} times")):
                if pairs and all(is_multiple(said, expected, factor) for said, expected in pairs):
                    said, expected = pairs[-1]
                    evidence = f"{name} is {words} of the mean loss of the backward passes: {said:.4g}, not "
                    evidence += f"{expected:.4g}{of_examples(images, trained)}"
                    return Evidence(evidence, "is each rank's sum divided by the examples of all?", *OTHER_NUMBER)
    for said, examples in zip(images, zip(*trained["examples"], strict=False), strict=False):
        if None not in examples and all(abs(said - each) > NEARLY * each for each in (*examples, sum(examples))):
            evidence = f"{names[0]} is reported for {said} examples, but the ranks trained on {sum(examples)}"
            return Evidence(evidence, "is it the mean over these examples?", *OTHER_NUMBER)
    return None


OTHER_NUMBER = (
    "a metric divided by the wrong number",
    "the metric changes with the number of ranks",
    "sum losses and counts over ranks (all_reduce), and divide once",
)


def of_examples(images: list[int], trained: dict) -> str:
    seen = (trained["examples"][0] or [None])[-1]
    return f"; it is reported for {images[-1]} examples, but rank 0 trained on {seen}" if images and seen else ""


def is_multiple(said: float | None, expected: float | None, factor: float) -> bool:
    return bool(said and expected) and math.isclose(said, factor * expected, rel_tol=CLOSE)


def differ(values: tuple) -> bool:
    """Whether numbers differ by more than rounding. In a record None is a number that is not finite."""
    known = {value is not None and math.isfinite(value) for value in values}
    if len(known) > 1:
        return True
    return known == {True} and not all(math.isclose(v, values[0], rel_tol=1e-6, abs_tol=1e-12) for v in values)


def spread(record, observed) -> float | None:
    values = ranks_metric(record, observed)
    return max(values) - min(values) if values else None


@mistake(
    "a rank's own metric reported as the global one",
    "the metric covers a part of the validation examples, and differs by rank",
    "sum the counts over ranks (all_reduce) and divide once",
    needs="reported|validated",
    overrides={"sum_counts": sum_counts},
    requires=(SEVERAL_PROCESSES, EPOCHS, VALIDATION),
    lab=Lab(
        "What is printed when the counts are not summed over ranks?",
        "Each rank's log has a different value, in coarser steps, because only a share of the examples was counted.",
        (
            Measure("{points} between the highest and the lowest rank", spread, "up"),
            Measure("validation examples behind the reported figure", of_epoch("images", -1), "down", ".0f"),
        ),
        shows="ranks",
    ),
    case="wrong/metrics_own_shard",
)
def rank_metrics(observed: dict) -> str | Evidence | None:
    """If no metrics are known: a sharded validation after which the ranks exchanged nothing."""
    reported, ranks = observed.get("reported", {}), observed.get("world_size", 1)
    for name, values in reported.items():
        columns = [] if name == "val_images" else list(zip(*values, strict=False))  # one per epoch
        differing = [epoch for epoch, column in enumerate(columns, 1) if differ(column)]
        if differing:
            epoch = differing[-1]  # in others they may agree by chance
            said = ", ".join("not finite" if value is None else f"{value:.6g}" for value in columns[epoch - 1])
            when = "in the last epoch" if epoch == len(columns) else f"in epoch {epoch}"
            return f"{name} differs by rank: {said} {when}"
    counted = [n for rank in reported.get("images", []) for n in rank]
    whole = reported.get("val_images")
    if ranks > 1 and whole and counted and min(counted) < whole * (1 + 1 / ranks) / 2:  # nearer a share than the whole
        return f"a rank counted {min(counted)} of {whole} validation examples"
    return other_mean(reported, observed.get("trained"), ranks) or (None if reported else own_share(observed, ranks))
