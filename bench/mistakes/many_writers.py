from bench.mistakes.base import CHECKPOINTS, EPOCHS, SEVERAL_PROCESSES, Lab, mistake, numbers
from bench.mistakes.measures import Measure


def save(script, path, state: dict) -> None:
    """``torch.save(state, path)`` on every rank. After each write the owner of the file is recorded."""
    import torch

    torch.save(state, path)
    script.mode.barrier()  # only of the demo: the file is read after all ranks have written
    if script.topology.rank == 0:
        script.noted["files"][owner_of(script.read_checkpoint(path))] += 1
    script.mode.barrier()


def owner_of(state: dict | None) -> str:
    """The rank whose batch-norm statistics (they differ by rank) a checkpoint's model has: "rank 1", "a mixture of
    ranks", "no rank" or "unreadable". state: None for a file that cannot be read."""
    import torch

    if state is None:
        return "unreadable"
    owners = [
        {rank for rank, part in enumerate(state["ranks"]) if torch.equal(part["buffers"][name], state["model"][name])}
        for name in state["ranks"][0]["buffers"]
    ]
    if not owners:
        return "not known: no statistics"
    if common := set.intersection(*owners):
        return f"rank {min(common)}" if len(common) == 1 else "any rank: all are equal"
    return "a mixture of ranks" if all(owners) else "no rank"


def most_writers(record, observed) -> int | None:
    files = observed.get("writers")
    return None if files is None else max(map(len, files.values()), default=0)


@mistake(
    "several ranks write one file",
    "the file is the last writer's, or a mixture that cannot be read",
    "write only on rank 0, under a temporary name, then rename",
    needs="writers",
    overrides={"save": save},
    requires=(SEVERAL_PROCESSES, EPOCHS, CHECKPOINTS),
    lab=Lab(
        "Whose is a checkpoint that every rank writes?",
        "Usually nothing is visible. Occasionally a job cannot be resumed, or continues slightly worse than before.",
        (Measure("ranks that write the same file", most_writers, "up", ".0f"),),
        workload={"checkpoint": True},
        shows="files",
    ),
    case="wrong/writers_torch_save",
)
def many_writers(observed: dict) -> str | None:
    several = {name: ranks for name, ranks in observed.get("writers", {}).items() if len(ranks) > 1}
    if not several:
        return None
    named = "; ".join(f"{name} by ranks {numbers(ranks)}" for name, ranks in list(several.items())[:3])
    return f"{len(several)} file{'s' * (len(several) > 1)} written by more than one rank: {named}"
