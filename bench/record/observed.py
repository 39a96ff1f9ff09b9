"""What is known of a run, for the detectors of bench/mistakes. It imports no torch.

``observed`` is a dict that JSON can hold. A record has one; a Watch (bench/observe/watch.py) makes one of any training
script. A key that is absent was not observed, and its detector says nothing. All lists are by rank unless said.

    world_size     processes that train
    num_devices    devices over all processes
    device         "cpu" or "cuda"; not known of a run that failed
    disturbed      what else used the machine above the thresholds, in words; "" for nothing (record/disturbance.py)
    exchanges      whether gradients are exchanged at all (a bound without communication does not: no mistake of it)
    trains         whether epochs are trained (and not only steps timed)
    start, end     {"parameters": [sha256, …], "buffers": [sha256, …]}
    data           {"num_images", "global_batch", "epochs": [{"draws", "never", "repeated", "most"}, …] of each epoch
                   that was seen whole, "never_seen" images in no such epoch, "same_neighbours" share 0..1 of the
                   second epoch's neighbours that were neighbours in the first, "shared_in_a_step" share 0..1 of a
                   step's images that more than one rank (or one rank twice) has}; what was not seen is absent. Of an
                   epoch also "by_one_rank": images that a rank by itself drew more than once. Of a Watch also "sampler"
                   (what it says of itself: "kind", "shuffles", "replacement", "repeats", "set_epoch", and the "epochs"
                   that it was told) or None, "own_sets" (each rank reads its own), "alike" share 0..1 of the steps that
                   are the same on all ranks, "shared_examples" {"shared", "of"} by their bytes, "unheard" {key: why}
    reported       {"top1": [[per epoch], …], "images": [[per epoch], …], "val_images"}
    writers        {file name: [ranks that wrote it]}
    learning_rate  {"used", "meant", "global_batch", "for_batch"}: meant is the recipe's, scaled to this global batch
    augmentation   {"streams": [fingerprint, …]}: of the random choices of the first steps; of a Watch also the
                   "generators" that ranks share, those that the "workers" of a rank share, those that begin an epoch
                   "again" as another one, and whether they are "of_a_stream", which may shuffle with them
    gradient       {"over_mean", "same_on_all_ranks", "kind", "exchanged", "steady", "passes"}: the exchanged gradient
                   over the mean of the ranks' own; exchanged: not each rank its own; steady: the same in all steps that
                   were looked at; passes: backward passes of a step. Of a Watch also "own": [parameters outside the
                   model that each rank steps with its own gradient of], "gathers": whether the ranks send something
                   between forward and backward, "unheard": {"exchanged": why}
    loads          [[{"file", "keys", "missing", "unexpected", "strict", "prefix"}, …], …]
    norm           {"kind", "images", "synchronised", "disagreement"}: images one normalising layer sees at once;
                   disagreement: of the ranks' running means, in standard deviations, at the end
    host_syncs     [{"where": "train.py:12 item", "per_step"}, …] of rank 0
    loader         {"wait_share": [share 0..1 of the time of a step, …], "workers"}; of a Watch also "wait_s", which
                   three quarters of the steps wait at least, [s or None on a GPU, …]
    hang           {"limit_s", "where": [{"file", "line", "function", "collective"} or None, …]}; of a Watch "by", and
                   in each place "epochs" (batches of those that ended), "taken" (of this one), "trains", "evaluates",
                   "left" (whether the rank has left the loop in which it trained), "awaits_batch" where it waits for
                   its loader; of a rank whose process has ended "ended": after how much, and by which exception

What a Watch alone observes:

    group          {"joined": whether there is a process group, "launched": {"variable", "processes"} of a launcher}
    weights        {"looked_at": [steps], "apart_at": the first after which replicas differ or None, "layers" that do,
                   "outside": [parameters that the optimizers train outside the model], "together_again": whether they
                   were equal at a later look}
    zero_grad      {"steps", "kept": [parameters whose gradient still had an earlier step's], "lost": steps whose
                   gradients were zeroed after backward}
    evaluation     {"looked_at": [steps], "apart_at": the first after which ranks evaluate with different buffers or
                   None, "buffers": [names], "ranks": how many evaluate then}
    restored       {"weights": [hash before the first step, …], "sent": [whether Horovod's optimizer has weight decay,
                   and a state at that time, …], "moved": [whether broadcast_optimizer_state changed weights, …]}
    parameters     {"tensors", "steps", "forgotten": [in no optimizer, with a gradient], "missing": number in none,
                   "head_alone", "stale": number the optimizer has that are not the model's, "unchanged": [names],
                   "idle": [those without a gradient]}
    rates          {"looked_at", "apart_at": the first step with other learning rates by rank or None, "by_rank"}
    passes         {"steps", "unsynced": those whose last forward ran with require_backward_grad_sync=False}
    forwards       {"trains", "evaluates": calls of the wrapped model that broadcast its buffers, "buffers": whether it
                   has some to broadcast}
    others         {name of a further module: [hash, …]}
    steps          {"batches": [[per epoch], …], "images": [of a batch, …], "joined": whether under Join, "wrapped":
                   whether DDP or Horovod's optimizer exchanges every step}
    random         {"streams": [fingerprint, …], "generators": [names]}: of the random numbers of the first steps
    schedules      of each optimizer of rank 0 {"steps", "peak", "last", "zeros": steps at a rate of 0, "trend":
                   "falls", "rises", "again" or None, "schedulers": [{"kind", "length" or None, "ends",
                   "taken", "here"}, …]}
    targets        {"steps" looked at, "counts": [targets of a step, …], "ratio", "most": of the weights of a target on
                   two ranks, median and highest}
    trained        {"loss": [[mean before each report, …], …], "by_examples": likewise, "examples": likewise}
    memory         {"place": ["host" or "GPU", …], "steps": [[first, last], …], "bytes": [[at these], …], "steadily":
                   [whether it grew all the time, …]}
    contents       {"apart": None or {"file", "step", "by_rank": [number of the contents, …]}} of what torch.load read
    contexts       {"own", "extra", "loaded": [[GPUs], …], "current": [GPU, …], "together": [ranks on one GPU]}
    validations    [{"draws", "examples", "shared": examples drawn more than once, "shared_out": whether the ranks have
                   parts of the set}, …] of epochs without training
    validated      {"times", "silent": how often nothing was sent between the ranks before the training went on}
    eval_mode      {"validations", "in_training_mode": those with such layers, "layers": {kind: number}}
    unloaded       {"files": [{"file", "keys"}, …] with the model's weights that were read and not loaded, "assigned":
                   class of a module whose state_dict something was assigned to, or ""}
"""

import statistics

from bench.config.modes import MODES
from bench.config.options import RunConfig, unchecked
from bench.formulas import scaled_lr


def observed_of(record: dict) -> dict:
    """The input of the detectors: what was observed, and what samples and facts say. record: of this schema version."""
    config = unchecked(record["config"])
    if record["status"] == "failed":
        hang = {"limit_s": config.timeout, "where": record["failure"].get("where") or []}
        return {"world_size": len(hang["where"]), "hang": hang} if record["failure"].get("where") else {}
    if not record["samples"]:
        return {}
    return (
        {"device": config.device}
        | from_samples(config, record["topology"], record["samples"])
        | record.get("observed", {})
    )


def from_samples(config: RunConfig, topology: dict, parts: list[dict]) -> dict:
    """``observed`` as far as a record's samples say it; the oldest have no facts. parts: one dict per rank."""
    facts = parts[0].get("facts")
    hashes = {when: [part[f"{key}_weights_sha256"] for part in parts if f"{key}_weights_sha256" in part]
              for when, key in (("start", "initial"), ("end", "final"))}  # fmt: skip
    first = [index for part in parts for index in part["first_indices"]]
    known = {
        "world_size": len(parts),
        "num_devices": topology["num_devices"],
        "trains": config.epochs > 0,
        "exchanges": config.sync and not MODES[config.mode].baseline and MODES[config.mode].same_update,
        "start": {"parameters": hashes["start"]} if hashes["start"] else None,
        "end": {"parameters": hashes["end"]} if hashes["end"] else None,
        "data": None if config.resume else {"shared_in_a_step": 1 - len(set(first)) / len(first)},
        "loader": {"wait_share": [median_share(part["data_wait_s"], part["step_time_s"]) for part in parts],
                   "workers": topology["loader_workers_total"]},
        **(from_facts(config, topology["global_batch"], facts) if facts else {}),
    }  # fmt: skip
    return {name: value for name, value in known.items() if value is not None}


def from_facts(config: RunConfig, global_batch: int, facts: dict) -> dict:
    """What the facts say about normalising layers, learning rate and host syncs."""
    frozen = config.freeze or config.train_only  # frozen layers do not normalise with their batch
    waits = {"loss.item() (ITEM_SYNC=1)": facts["item_sync"], "a barrier (STEP_BARRIER=1)": facts["step_barrier"]}
    return {
        "norm": None if frozen else norm_of(facts["norm"], config.per_device_batch),
        "learning_rate": rate_of(facts["lr"], config.lr, global_batch, config.lr_batch),
        "host_syncs": [{"where": name, "per_step": 1} for name, on in waits.items() if on],
    }


def median_share(waits: list[float], steps: list[float]) -> float:
    return statistics.median(wait / step for wait, step in zip(waits, steps, strict=False))


def norm_of(kind: str, images: int) -> dict:
    """kind: the classes of the layers, as in the facts. images: that one layer sees together."""
    return {"kind": kind, "images": images, "synchronised": "Sync" in kind or "ReducedBatchNorm" in kind}


def rate_of(used: float, lr: float, global_batch: int, for_batch: int | None) -> dict | None:
    """The learning rate compared with the recipe's; None if the recipe names no global batch."""
    if for_batch is None:
        return None
    meant = scaled_lr(lr, global_batch, for_batch)
    return {"used": used, "meant": meant, "global_batch": global_batch, "for_batch": for_batch}
