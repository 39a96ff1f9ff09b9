"""The detectors: what was observed of a run in, findings out. It imports no torch.

``observed`` is a dict that JSON can hold. A record has one; a Watch (bench/labs/watch.py) makes one of any training
script. A key that is absent was not observed, and its detector says nothing. All lists are by rank unless said.

    world_size     processes that train
    num_devices    devices over all processes
    exchanges      whether gradients are exchanged at all (a bound without communication does not: no mistake of it)
    trains         whether epochs are trained (and not only steps timed)
    start, end     {"parameters": [sha256, …], "buffers": [sha256, …]}
    data           {"num_images", "global_batch", "epochs": [{"draws", "never", "repeated", "most"}, …] of each epoch
                   that was seen whole, "never_seen" images in no such epoch, "same_neighbours" share 0..1 of the
                   second epoch's neighbours that were neighbours in the first, "shared_in_a_step" share 0..1 of a
                   step's images that more than one rank (or one rank twice) has}
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

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One mistake that was found. name: as in bench/mistakes.py, or "loader-starvation"."""

    name: str
    evidence: str
    consequence: str
    remedy: str


def find(observed: dict) -> list[Finding]:
    """All findings, in the order of the museum."""
    return [finding for detector in DETECTORS.values() if (finding := detector(observed))]


DETECTORS = {}


def observed_of(record: dict) -> dict:
    """What was observed of a record's run."""
    return record.get("observed", {})
