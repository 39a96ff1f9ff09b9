"""Several ranks write one file: ``torch.save(state, path)`` on every rank, to one name."""

from bench.mistakes.base import CHECKPOINTS, EPOCHS, SEVERAL_PROCESSES, Lab, Mistake
from bench.mistakes.measures import Measure


def save(script, path, state: dict) -> None:
    """Whose the file then is is looked at after each write: the batch-norm statistics in it differ by rank."""
    import torch

    torch.save(state, path)
    script.mode.barrier()  # the lab's: the file is looked at when all have written
    if script.topology.rank == 0:
        script.noted["files"][whose(script.read_checkpoint(path))] += 1
    script.mode.barrier()


def whose(state: dict | None) -> str:
    """Which rank's statistics a checkpoint's model has: "rank 1", "a mixture of ranks", "no rank" or "unreadable".
    state: None for a file that cannot be read."""
    import torch

    if state is None:
        return "unreadable"
    owners = [
        {rank for rank, part in enumerate(state["ranks"]) if torch.equal(part["buffers"][name], state["model"][name])}
        for name in state["ranks"][0]["buffers"]
    ]
    if not owners:
        return "not known: no statistics"
    common = set.intersection(*owners)
    if common:
        return f"rank {min(common)}" if len(common) == 1 else "any rank: all are equal"
    return "a mixture of ranks" if all(owners) else "no rank"


def detect(observed: dict) -> str | None:
    several = {name: ranks for name, ranks in observed.get("writers", {}).items() if len(ranks) > 1}
    if not several:
        return None
    named = "; ".join(f"{name} by ranks {', '.join(map(str, ranks))}" for name, ranks in list(several.items())[:3])
    return f"written by more than one rank ({len(several)} in all): {named}"


def writers(record, observed) -> int | None:
    files = observed.get("writers")
    return None if files is None else max(map(len, files.values()), default=0)


MISTAKE = Mistake(
    "many-writers",
    "several ranks write one file",
    "the file is that of the last writer, or a mixture that cannot be read",
    "write on rank 0 alone, under a temporary name, then rename",
    detect,
    needs="writers",
    overrides={"save": save},
    requires=(SEVERAL_PROCESSES, EPOCHS, CHECKPOINTS),
    lab=Lab(
        "Whose is a checkpoint that every rank writes?",
        "Mostly nothing is seen. Now and then a job cannot be resumed, or goes on a little worse than it was.",
        (Measure("ranks that write the same file", writers, "up", ".0f"),),
        workload={"checkpoint": True},
        shows="files",
    ),
)
