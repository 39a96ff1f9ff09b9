"""The detectors: what was observed of a run in, findings out. It imports no torch.

``observed`` is a dict that JSON can hold. A record has one; a Watch (bench/observe/watch.py) makes one of any training
script. A key that is absent was not observed, and its detector says nothing. All lists are by rank unless said.

    world_size     processes that train
    num_devices    devices over all processes
    exchanges      whether gradients are exchanged at all (a bound without communication does not: no mistake of it)
    trains         whether epochs are trained (and not only steps timed)
    start, end     {"parameters": [sha256, …], "buffers": [sha256, …]}
    data           {"num_images", "global_batch", "epochs": [{"draws", "never", "repeated", "most"}, …] of each epoch
                   that was seen whole, "never_seen" images in no such epoch, "same_neighbours" share 0..1 of the
                   second epoch's neighbours that were neighbours in the first, "shared_in_a_step" share 0..1 of a
                   step's images that more than one rank (or one rank twice) has}; what was not seen is absent
    reported       {"top1": [[per epoch], …], "images": [[per epoch], …], "val_images"}
    writers        {file name: [ranks that wrote it]}
    learning_rate  {"used", "meant", "global_batch", "for_batch"}: meant is the recipe's, scaled to this global batch
    augmentation   {"streams": [fingerprint, …]}: of the random choices of the first steps
    gradient       {"over_mean", "same_on_all_ranks", "kind"}: the exchanged gradient over the mean of the ranks' own
    loads          [[{"file", "keys", "missing", "unexpected", "strict", "prefix"}, …], …]
    norm           {"kind", "images", "synchronised", "disagreement"}: images one normalising layer sees at once;
                   disagreement: of the ranks' running means, in standard deviations, at the end
    host_syncs     [{"where": "train.py:12 item", "per_step"}, …] of rank 0
    loader         {"wait_share": [share 0..1 of the time of a step, …], "workers"}
    hang           {"limit_s", "where": [{"file", "line", "function", "collective"} or None, …]}
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.config.modes import MODES
from bench.mistakes import MISTAKES
from bench.training.schedule import scaled_lr

STARVED = 0.2  # a loader is too slow when the median step waits for it more than this share of its time
SAME_ORDER = 0.2  # of an epoch's neighbours; in a reshuffled epoch about one pair in all stays together
BY_CHANCE = 1e-3  # images lost in every epoch are a finding where chance does it less often than this
# Batch norm's error on ImageNet rises rapidly with fewer images a worker, and most from here on down (Wu and He 2018,
# "Group Normalization", https://arxiv.org/abs/1803.08494, figure 1).
FEW_IMAGES = 8
STARVATION = "loader-starvation"
STARVED_BY = (
    "the device idles while it waits for data: a faster device or more of them bring nothing",
    "more loader workers (WORKERS), smaller or decoded images (IN_MEMORY=1), faster storage",
)
DRIFT = (
    "the replicas are different models from here on, and the one that is saved is none that was validated together",
    "let every gradient be exchanged, and step on every rank with the same gradients and the same learning rate",
)


@dataclass(frozen=True)
class Finding:
    """One mistake that was found. name: as in bench/mistakes/__init__.py, or "loader-starvation"."""

    name: str
    evidence: str
    consequence: str
    remedy: str


def find(observed: dict) -> list[Finding]:
    """All findings, in the order of the museum."""
    return [finding for detector in DETECTORS.values() if (finding := detector(observed))]


def unobserved(observed: dict) -> list[str]:
    """The mistakes of which nothing is known, because what shows them was not observed."""
    return [name for name, path in NEEDS.items() if part_of(observed, path.split()) is None]


def part_of(observed: dict, path: Sequence[str]):
    """A part of a part; None where it was not observed."""
    for key in path:
        observed = (observed or {}).get(key)
    return observed


def in_words(finding: Finding) -> list[str]:
    """A finding as lines of text."""
    title = MISTAKES[finding.name].title if finding.name in MISTAKES else "a step waits for its loader"
    parts = {"evidence": finding.evidence, "consequence": finding.consequence, "remedy": finding.remedy}
    return [f"{finding.name}: {title}", *(f"  {name + ':':12} {text}" for name, text in parts.items())]


def found(name: str, evidence: str) -> Finding:
    """A finding with the consequence and the remedy of the museum's table."""
    return Finding(name, evidence, MISTAKES[name].consequence, MISTAKES[name].remedy)


# --- one detector a mistake: observed -> Finding or None ----------------------------------------------------------


def unsynced_init(observed: dict) -> Finding | None:
    """Replicas whose parameters differ before the first step, or at the end. Where nothing is exchanged they do."""
    if not observed.get("exchanges", True):
        return None
    start, end = (observed.get(when, {}).get("parameters", []) for when in ("start", "end"))
    if len(set(start)) > 1:
        return found("unsynced-init", f"{sets_of(start)} before the first step")
    if len(set(end)) > 1:
        evidence = f"{sets_of(end)} at the end, from one set before the first step"
        return Finding("unsynced-init", evidence, *DRIFT)
    return None


def sets_of(hashes: list[str]) -> str:
    """How many kinds of weights there are on how many ranks."""
    names = ", ".join([digest[:8] for digest in hashes[:4]] + ["…"] * (len(hashes) > 4))
    return f"{len(set(hashes))} different sets of weights on {len(hashes)} ranks (sha256 {names})"


def whole_data(observed: dict) -> Finding | None:
    """Epochs of more draws than images, images drawn again and again in an epoch, or an image twice in one step."""
    data = observed.get("data", {})
    for number, epoch in enumerate(data.get("epochs", []), 1):
        if epoch["draws"] >= data["num_images"] + data["global_batch"] or epoch["repeated"] > 2 * data["global_batch"]:
            return found(
                "whole-data",
                f"epoch {number} drew {epoch['draws']} times from {data['num_images']} images: {epoch['repeated']} of "
                f"them more than once, one {epoch['most']} times",
            )
    shared = data.get("shared_in_a_step") or 0
    if shared > 0:
        return found("whole-data", f"{100 * shared:.1f} % of a step's images are there more than once")
    return None


def no_reshuffle(observed: dict) -> Finding | None:
    """Neighbours of one epoch that are neighbours in the next. In a new order about one pair in all is, so a set of a
    few images is not judged."""
    data = observed.get("data", {})
    same = data.get("same_neighbours")
    if same is None or same <= SAME_ORDER or same * data["num_images"] <= 10:
        return None
    return found("no-reshuffle", f"{100 * same:.1f} % of the second epoch's neighbours were neighbours in the first")


def rank_metrics(observed: dict) -> Finding | None:
    """Ranks that report different figures, or each counted but a share of the validation images."""
    reported, ranks = observed.get("reported", {}), observed.get("world_size", 1)
    for name, values in reported.items():
        columns = [] if name == "val_images" else list(zip(*values, strict=False))  # one an epoch
        differing = [epoch for epoch, column in enumerate(columns, 1) if differ(column)]
        if differing:
            epoch = differing[-1]  # they may agree by chance in others
            said = ", ".join("not finite" if value is None else f"{value:.6g}" for value in columns[epoch - 1])
            when = "in the last epoch" if epoch == len(columns) else f"in epoch {epoch}"
            return found("rank-metrics", f"{name} differs by rank: {said} {when}")
    counted = [n for rank in reported.get("images", []) for n in rank]
    whole = reported.get("val_images")
    if ranks > 1 and whole and counted and min(counted) < whole * (1 + 1 / ranks) / 2:  # nearer a share than the whole
        return found("rank-metrics", f"a rank counted {min(counted)} of {whole} validation images")
    return None


def differ(values: tuple) -> bool:
    """Whether numbers are not all the same but for rounding. In a record None is a number that is not finite."""
    known = {value is not None and math.isfinite(value) for value in values}
    if len(known) > 1:
        return True
    return known == {True} and not all(math.isclose(v, values[0], rel_tol=1e-6, abs_tol=1e-12) for v in values)


def many_writers(observed: dict) -> Finding | None:
    """One file, several ranks."""
    several = {name: ranks for name, ranks in observed.get("writers", {}).items() if len(ranks) > 1}
    if not several:
        return None
    named = "; ".join(f"{name} by ranks {', '.join(map(str, ranks))}" for name, ranks in list(several.items())[:3])
    return found("many-writers", f"written by more than one rank ({len(several)} in all): {named}")


def rank0_collective(observed: dict) -> Finding | None:
    """A run that hung with its ranks in collectives at different lines. A rank that hangs elsewhere is another fault.

    collective is None in a backward pass, where a rank may compute or wait; that alone proves nothing.
    """
    hang = observed.get("hang", {})
    places = {rank: place for rank, place in enumerate(hang.get("where", [])) if place}
    lines = {(place["file"], place["line"]) for place in places.values()}
    waits = {place["collective"] for place in places.values()}
    if len(lines) < 2 or False in waits or True not in waits or None in hang["where"]:
        return None
    named = ", ".join(f"rank {r} at {Path(p['file']).name}:{p['line']} ({p['function']})" for r, p in places.items())
    limit = f"no progress for {hang['limit_s']:g} s (TIMEOUT)"
    return found("rank0-collective", f"{limit}, at different lines, not all in one collective: {named}")


def lr_not_scaled(observed: dict) -> Finding | None:
    """A learning rate more than a tenth off the recipe's, scaled to the global batch."""
    rate = observed.get("learning_rate")
    if not rate or abs(rate["used"] / rate["meant"] - 1) <= 0.1:
        return None
    return found(
        "lr-not-scaled",
        f"the highest learning rate is {rate['used']:g}; the recipe's, for {rate['for_batch']} images a step, is "
        f"{rate['meant']:g} at this global batch of {rate['global_batch']}",
    )


def same_augmentation(observed: dict) -> Finding | None:
    """Two ranks whose augmentation draws the same random numbers."""
    streams = observed.get("augmentation", {}).get("streams", [])
    kinds = len(set(streams))
    if kinds == len(streams):
        return None
    return found("same-augmentation", f"{len(streams)} ranks draw their crops and flips from {kinds} random streams")


def gradient_sum(observed: dict) -> Finding | None:
    """An exchanged gradient that is a multiple of the mean, or the mean divided by the number of ranks once more."""
    gradient, ranks = observed.get("gradient"), observed.get("world_size", 1)
    if not gradient or gradient["kind"] != "mean" or ranks == 1:
        return None
    ratio = gradient["over_mean"]
    if ratio <= 1.1 and abs(ratio * ranks - 1) > 0.02:
        return None
    like = "their sum" if abs(ratio / ranks - 1) < 0.1 else "divided twice" if ratio < 1 else "scaled"
    what = f"the exchanged gradient is {ratio:.3f} times the mean of the {ranks} ranks' own"
    return found("gradient-sum", f"{what}: {like}")


def strict_false(observed: dict) -> Finding | None:
    """Weights loaded with strict=False of which most found no place, or whose names are off by a prefix. A new head, or
    a part of a larger file that fills the model, is neither."""
    for load in (load for rank in observed.get("loads", []) for load in rank):
        placed = load["keys"] - load["unexpected"]
        if not load["strict"] and load["missing"] and (load["prefix"] or 2 * placed < load["keys"]):
            prefix = f"; the names differ by the prefix {load['prefix']}" if load["prefix"] else ""
            return found(
                "strict-false",
                f"{load['file'] or 'a state dict'} loaded with strict=False: {placed} of {load['keys']} keys found a "
                f"place, {load['missing']} of the model's stayed as they were{prefix}",
            )
    return None


def local_norm(observed: dict) -> Finding | None:
    """Batch norm over fewer images than FEW_IMAGES on each of several devices, in a training. Running means that differ
    by rank are no finding: in some modes each rank keeps its own by design."""
    norm = observed.get("norm") or {}
    if not (observed.get("trains") and observed.get("exchanges", True) and observed.get("num_devices", 1) > 1):
        return None
    if "BatchNorm" not in norm.get("kind", "") or norm["synchronised"] or norm["images"] >= FEW_IMAGES:
        return None
    apart = norm.get("disagreement")
    aside = "" if apart is None else f"; the ranks' running means are {apart:.2g} standard deviations apart at the end"
    return found("local-norm", f"{norm['kind']} over {norm['images']} images a device (few: below {FEW_IMAGES}){aside}")


def host_sync(observed: dict) -> Finding | None:
    """Lines of the script that wait for the device in at least every other step."""
    lines = [entry for entry in observed.get("host_syncs", []) if entry["per_step"] >= 0.5]
    if not lines:
        return None
    named = ", ".join(f"{entry['where']} ({entry['per_step']:.3g} a step)" for entry in lines[:3])
    return found("host-sync", f"the host waits for the device at {named}")


def lost_remainder(observed: dict) -> Finding | None:
    """Images that no epoch draws. An epoch may leave out less than a global batch, others each time."""
    data = observed.get("data", {})
    epochs = data.get("epochs", [])
    if not epochs or whole_data(observed):
        return None
    never = max(epoch["never"] for epoch in epochs)
    if never >= data["global_batch"]:
        return found("lost-remainder", f"an epoch never drew {never} of {data['num_images']} images, a global batch of "
                                       f"{data['global_batch']} or more")  # fmt: skip
    lost, images = data["never_seen"], data["num_images"]
    if len(epochs) > 1 and lost and chance(lost, images, [epoch["never"] for epoch in epochs]) < BY_CHANCE:
        return found("lost-remainder", f"{lost} of {images} images were drawn in none of {len(epochs)} epochs")
    return None


def chance(lost: int, num_images: int, never: list[int]) -> float:
    """A bound on the chance that all epochs miss ``lost`` or more images, when each misses its number at random.

    With n images and l_e missed by epoch e, m = n x prod(l_e / n) are expected to be missed by all, and the chance of k
    or more is at most m^k / k!: Markov's inequality on the number of k-subsets of them.

    >>> round(chance(4, 100, [4, 4]), 9), chance(1, 100, [20, 20])
    (2.7307e-05, 1.0)
    """
    expected = math.log(num_images) + sum(math.log(count / num_images) for count in never)
    return math.exp(min(0.0, lost * expected - math.lgamma(lost + 1)))


def starvation(observed: dict) -> Finding | None:
    """A loader that is slower than the training."""
    loader = observed.get("loader") or {}
    share = max(loader.get("wait_share") or [0])
    if share <= STARVED:
        return None
    evidence = (
        f"the median step waits {100 * share:.0f} % of its time for data, with {loader['workers']} loader workers"
    )
    return Finding(STARVATION, evidence, *STARVED_BY)


DETECTORS: dict[str, Callable[[dict], Finding | None]] = {
    "unsynced-init": unsynced_init,
    "whole-data": whole_data,
    "no-reshuffle": no_reshuffle,
    "rank-metrics": rank_metrics,
    "many-writers": many_writers,
    "rank0-collective": rank0_collective,
    "lr-not-scaled": lr_not_scaled,
    "same-augmentation": same_augmentation,
    "gradient-sum": gradient_sum,
    "strict-false": strict_false,
    "local-norm": local_norm,
    "host-sync": host_sync,
    "lost-remainder": lost_remainder,
    STARVATION: starvation,
}
NEEDS = {  # detector -> the part that it looks at; a hang is seen only in a run that failed
    "unsynced-init": "start", "whole-data": "data", "no-reshuffle": "data same_neighbours", "rank-metrics": "reported",
    "many-writers": "writers", "lr-not-scaled": "learning_rate", "same-augmentation": "augmentation",
    "gradient-sum": "gradient", "strict-false": "loads", "local-norm": "norm", "host-sync": "host_syncs",
    "lost-remainder": "data epochs", STARVATION: "loader",
}  # fmt: skip


# --- what a record says without having been observed --------------------------------------------------------------


def observed_of(record: dict) -> dict:
    """What is known of a record's run: what was observed, beside what its samples and its facts say anyhow."""
    if record["status"] == "failed":
        hang = {"limit_s": record["config"]["timeout"], "where": record["failure"].get("where") or []}
        return {"world_size": len(hang["where"]), "hang": hang} if record["failure"].get("where") else {}
    if not record["samples"]:
        return {}
    return from_samples(record["config"], record["topology"], record["samples"]) | record.get("observed", {})


def from_samples(config: dict, topology: dict, parts: list[dict]) -> dict:
    """``observed`` as far as a record's samples say it; the oldest have no facts.

    parts: one dict a rank, as in the record. A part that is not known is absent.
    """
    facts = parts[0].get("facts")
    hashes = {when: [part[f"{key}_weights_sha256"] for part in parts if f"{key}_weights_sha256" in part]
              for when, key in (("start", "initial"), ("end", "final"))}  # fmt: skip
    first = [index for part in parts for index in part["first_indices"]]
    known = {
        "world_size": len(parts),
        "num_devices": topology["num_devices"],
        "trains": config["epochs"] > 0,
        "exchanges": config["sync"] and not MODES[config["mode"]].baseline,
        "start": {"parameters": hashes["start"]} if hashes["start"] else None,
        "end": {"parameters": hashes["end"]} if hashes["end"] else None,
        "data": None if config["resume"] else {"shared_in_a_step": 1 - len(set(first)) / len(first)},
        "loader": {"wait_share": [median_share(part["data_wait_s"], part["step_time_s"]) for part in parts],
                   "workers": topology["loader_workers_total"]},
        **(from_facts(config, topology["global_batch"], facts) if facts else {}),
    }  # fmt: skip
    return {name: value for name, value in known.items() if value is not None}


def from_facts(config: dict, global_batch: int, facts: dict) -> dict:
    """What the facts of a run say of its normalising layers, its learning rate and its waits."""
    frozen = config["freeze"] or config["train_only"]  # frozen layers do not normalise with their batch
    waits = {"loss.item() (ITEM_SYNC=1)": facts["item_sync"], "a barrier (STEP_BARRIER=1)": facts["step_barrier"]}
    return {
        "norm": None if frozen else norm_of(facts["norm"], config["per_device_batch"]),
        "learning_rate": rate_of(facts["lr"], config["lr"], global_batch, config["lr_batch"]),
        "host_syncs": [{"where": name, "per_step": 1} for name, on in waits.items() if on],
    }


def median_share(waits: list[float], steps: list[float]) -> float:
    """The share of its time that the median step waits for data."""
    return statistics.median(wait / step for wait, step in zip(waits, steps, strict=False))


def norm_of(kind: str, images: int) -> dict:
    """kind: the classes of the normalising layers, as facts have them. images: that one layer sees at once."""
    return {"kind": kind, "images": images, "synchronised": "Sync" in kind or "ReducedBatchNorm" in kind}


def rate_of(used: float, lr: float, global_batch: int, for_batch: int | None) -> dict | None:
    """The learning rate beside the recipe's; None where the recipe does not say which global batch it is for."""
    if for_batch is None:
        return None
    meant = scaled_lr(lr, global_batch, for_batch)
    return {"used": used, "meant": meant, "global_batch": global_batch, "for_batch": for_batch}
