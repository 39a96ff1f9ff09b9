"""The input of the detectors of bench/mistakes, whose README describes its parts. Imports no torch."""

import statistics

from bench.config.modes import MODES
from bench.config.options import RunConfig, unchecked
from bench.formulas import scaled_lr


def observed_of(record: dict) -> dict:
    """The input of the detectors: observations, and values from samples and facts. record: of this schema version."""
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
    """``observed``, as far as a record's samples contain it; the oldest have no facts. parts: one dict per rank."""
    facts = parts[0].get("facts")
    hashes = {when: [part[f"{key}_weights_sha256"] for part in parts if f"{key}_weights_sha256" in part]
              for when, key in (("start", "initial"), ("end", "final"))}  # fmt: skip
    steps = [zip(part["data_wait_s"], part["step_time_s"], strict=False) for part in parts]
    shares = [statistics.median(wait / step for wait, step in each) for each in steps]
    first = [index for part in parts for index in part["first_indices"]]
    known = {
        "world_size": len(parts),
        "num_devices": topology["num_devices"],
        "trains": config.epochs > 0,
        "exchanges": config.sync and not MODES[config.mode].baseline and MODES[config.mode].same_update,
        "start": {"parameters": hashes["start"]} if hashes["start"] else None,
        "end": {"parameters": hashes["end"]} if hashes["end"] else None,
        "data": None if config.resume else {"shared_in_a_step": 1 - len(set(first)) / len(first)},
        "loader": {"wait_share": shares, "workers": topology["loader_workers_total"]},
        **(from_facts(config, topology["global_batch"], facts) if facts else {}),
    }  # fmt: skip
    return {name: value for name, value in known.items() if value is not None}


def from_facts(config: RunConfig, global_batch: int, facts: dict) -> dict:
    frozen = config.freeze or config.train_only  # frozen layers do not normalise with their batch
    waits = {"loss.item() (INJECT=host-sync)": facts["item_sync"], "a barrier (INJECT=barrier)": facts["step_barrier"]}
    return {
        "norm": None if frozen else norm_of(facts["norm"], config.per_device_batch),
        "learning_rate": rate_of(facts["lr"], config.lr, global_batch, config.lr_batch),
        "host_syncs": [{"where": name, "per_step": 1} for name, on in waits.items() if on],
    }


def norm_of(kind: str, images: int) -> dict:
    return {"kind": kind, "images": images, "synchronised": "Sync" in kind or "ReducedBatchNorm" in kind}


def rate_of(used: float, lr: float, global_batch: int, for_batch: int | None) -> dict | None:
    """The learning rate compared with the recipe's; None if the recipe names no global batch."""
    if for_batch is None:
        return None
    meant = scaled_lr(lr, global_batch, for_batch)
    return {"used": used, "meant": meant, "global_batch": global_batch, "for_batch": for_batch}
