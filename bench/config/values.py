"""Structured values of options: GPUS=0,1, INJECT=kill:1:3, SNAPSHOTS, KEEP_CHECKPOINTS and SCHEDULE. Every function
raises UserError for an invalid text."""

import re

from bench.errors import UserError

SCHEDULES = ("constant", "step", "cosine", "cyclic", "sawtooth")
FAULT_KINDS = ("raise", "kill", "hang")


def parse_gpu_ids(text: str) -> list[str]:
    """The GPUs that a value of GPUS names; empty if it is a number of GPUs.

    >>> parse_gpu_ids("0, 1"), parse_gpu_ids("3,"), parse_gpu_ids("GPU-3f2a"), parse_gpu_ids("2")
    (['0', '1'], ['3'], ['GPU-3f2a'], [])
    """
    if "," not in text and not text.startswith(("GPU-", "MIG-")):
        return []
    ids = [entry.strip() for entry in text.removesuffix(",").split(",")]
    if any(entry.startswith("MIG-") for entry in ids):
        raise UserError(f"GPUS={text} names a MIG slice, which is not supported: name whole GPUs")
    if not all(re.fullmatch(r"[0-9]+|GPU-[0-9a-fA-F-]+", entry) for entry in ids):
        raise UserError(
            f"GPUS={text} is neither a whole number nor a list of GPU indices or UUIDs: write 2, 0,1 or GPU-3f2a"
        )
    ids = [str(int(entry)) if entry.isdecimal() else entry for entry in ids]
    if twice := [entry for entry in ids if ids.count(entry) > 1]:
        raise UserError(f"GPUS={text} names {twice[0]} twice")
    return ids


def parse_fault(text: str, num_processes: int) -> tuple[str, int, int]:
    """``kill:1:3`` -> ("kill", rank 1, step 3)."""
    match = re.fullmatch(rf"({'|'.join(FAULT_KINDS)}):(\d+):(\d+)", text)
    if not match or int(match[2]) >= num_processes:
        ranks = f"RANK below {num_processes}, the processes of this MODE and GPUS"
        raise UserError(f"INJECT={text}: write raise|kill|hang:RANK:STEP, as in kill:0:3, with {ranks}")
    return match[1], int(match[2]), int(match[3])


def parse_snapshots(text: str) -> list[int]:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise UserError(f"SNAPSHOTS={text}: write steps separated by commas, as in 1,5,20")
    return [int(step) for step in text.split(",")]


def parse_keep(text: str) -> int | None:
    """``3`` -> 3, ``all`` -> None: number of the epochs' checkpoints to keep."""
    if text == "all":
        return None
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise UserError(f"KEEP_CHECKPOINTS={text}: write all, or how many epochs' checkpoints to keep, as in 3")
    return int(text)


def parse_schedule(text: str) -> tuple[str, tuple[int, ...]]:
    """The name of a schedule, and the epochs after which its rate drops, if given.

    >>> parse_schedule("cosine"), parse_schedule("step:30,60,80")
    (('cosine', ()), ('step', (30, 60, 80)))
    """
    name, colon, epochs = text.partition(":")
    if name not in SCHEDULES:
        raise UserError(f"unknown SCHEDULE={text}: choose one of {', '.join(SCHEDULES)}, or step:30,60,80")
    if not colon:
        return name, ()
    if name != "step":
        raise UserError(f"SCHEDULE={text}: only step takes epochs, as in step:30,60,80")
    if not re.fullmatch(r"[1-9]\d{0,8}(,[1-9]\d{0,8})*", epochs):
        raise UserError(f"SCHEDULE={text}: write epochs (at least 1) separated by commas, as in step:30,60,80")
    drops = tuple(int(epoch) for epoch in epochs.split(","))
    if list(drops) != sorted(set(drops)):
        raise UserError(f"SCHEDULE={text}: write each epoch once, in ascending order")
    return name, drops
