"""Buffers, as batch norm's running statistics, that every rank has of its own when the model is evaluated."""

from bench.mistakes.base import Mistake, Question
from bench.mistakes.outside import some


def detect(observed: dict) -> Question | None:
    seen = observed.get("evaluation") or {}
    if seen.get("apart_at") is None:
        return None
    return Question(
        f"{seen['ranks']} ranks evaluated the model after step {seen['apart_at']} with different values in "
        f"{len(seen['buffers'])} buffers: {some(seen['buffers'])}",
        "is each rank's result meant to be that of its own buffers?",
    )


MISTAKE = Mistake(
    "unsynced-buffers",
    "buffers that differ by rank when the model is evaluated",
    "each rank evaluates another model: a result over all ranks is that of none of them, nor of the one that is saved",
    "average the buffers over the ranks before the evaluation, evaluate through a DistributedDataParallel that "
    "broadcasts its buffers (the default), or convert the batch norms by nn.SyncBatchNorm.convert_sync_batchnorm",
    detect,
    needs="evaluation",
    watched=True,
)
