from bench.mistakes.base import Evidence, mistake, some


@mistake(
    "buffers that differ by rank when the model is evaluated",
    "each rank evaluates a different model: a result over all ranks belongs to none of them, nor to the saved one",
    "average the buffers over the ranks before the evaluation, evaluate through a DistributedDataParallel that "
    "broadcasts its buffers (the default), or convert the batch norms by nn.SyncBatchNorm.convert_sync_batchnorm",
    needs="evaluation",
    case="wrong/buffers_of_the_last_step",
)
def unsynced_buffers(observed: dict) -> Evidence | None:
    seen = observed.get("evaluation") or {}
    if seen.get("apart_at") is None:
        return None
    return Evidence(
        f"{seen['ranks']} ranks evaluated the model after step {seen['apart_at']} with different values in "
        f"{len(seen['buffers'])} buffers: {some(seen['buffers'])}",
        "is each rank's result intended to use its own buffers?",
    )
