"""The known mistakes of data-parallel training, one line each. It imports no torch.

A mistake is made by a switch: an option of RunConfig that exists anyhow, or MISTAKE=<name>. Its detector in
bench/record/observed.py and its lab have the same name.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Mistake:
    """title: what was done wrong, in a few words. consequence: what comes of it. remedy: what to do. switch: the
    options that make a right run wrong; none: MISTAKE=<name> does."""

    title: str
    consequence: str
    remedy: str
    switch: dict = field(default_factory=dict)


MISTAKES = {
    "unsynced-init": Mistake(
        "replicas that do not start from the same weights",
        "every rank trains a model of its own with the gradients of all, and the one that is saved suits none of them",
        "ddp: leave init_sync on; horovod: call broadcast_parameters before the first step",
        {"init_sync": False},
    ),
    "whole-data": Mistake(
        "every rank reads the whole data set",
        "an epoch on N ranks is N epochs, and a global batch holds images more than once",
        "give each rank its share: DistributedSampler, or every N-th image",
    ),
    "no-reshuffle": Mistake(
        "a sampler without set_epoch",
        "every epoch has the same images in the same order and the same batches",
        "call sampler.set_epoch(epoch) before each epoch",
    ),
    "rank-metrics": Mistake(
        "a rank's own metric called the global one",
        "the figure is of a part of the validation images, and differs by rank",
        "sum the counts over ranks (all_reduce) and divide once",
    ),
    "many-writers": Mistake(
        "several ranks write one file",
        "the file is whoever's wrote last, or a mixture that cannot be read",
        "write on rank 0 alone, under a temporary name, then rename",
    ),
    "rank0-collective": Mistake(
        "a collective that only rank 0 enters",
        "rank 0 waits for the others, they wait for rank 0, and the job stands until it is killed",
        "let every rank enter every collective; only print or save under `if rank == 0`",
    ),
    "lr-not-scaled": Mistake(
        "a global batch that grew, with the learning rate of the small one",
        "fewer steps of the same length: training is slower an epoch",
        "scale the learning rate with the global batch (LR_BATCH), with a warm-up",
    ),
    "same-augmentation": Mistake(
        "the same augmentation stream on every rank",
        "the k-th images of all ranks get the same crop and flip: a global batch has less variety",
        "seed the augmentation by rank and by loader worker, or by the example",
    ),
    "gradient-sum": Mistake(
        "gradients summed where the mean is meant",
        "each step is N times as long, as if the learning rate were N times as large",
        "divide by the number of ranks once: DDP does, a plain all_reduce does not",
    ),
    "strict-false": Mistake(
        "a checkpoint loaded with strict=False, its keys prefixed with module.",
        "no key fits, nothing is loaded, nobody is told: training begins from random weights",
        "load strictly; save model.module.state_dict(), or strip the prefix",
    ),
    "local-norm": Mistake(
        "batch norm over the few images of one device",
        "statistics of a few images are noisy, and training suffers",
        "NORM=sync (SyncBatchNorm), a larger batch a device, or group norm",
        {"norm": "batch"},
    ),
    "host-sync": Mistake(
        "the host waits for the device every step",
        "loss.item() empties the device's queue: the next step is prepared while the device idles",
        "keep the sum on the device, and read it once an epoch or every hundred steps",
        {"item_sync": True},
    ),
    "lost-remainder": Mistake(
        "shards cut so that the remainder of the data is lost",
        "some images are never seen, in any epoch",
        "shuffle before cutting, and share the remainder out",
    ),
}


def confession(name: str) -> str:
    """What a run with MISTAKE=<name> says of itself.

    >>> confession("no-reshuffle")
    'a mistake made on purpose (MISTAKE=no-reshuffle): a sampler without set_epoch'
    """
    return f"a mistake made on purpose (MISTAKE={name}): {MISTAKES[name].title}"


INJECTED = tuple(name for name, mistake in MISTAKES.items() if not mistake.switch)


def wrong(name: str) -> dict:
    """The options that make a right run wrong.

    >>> wrong("host-sync"), wrong("whole-data")
    ({'item_sync': True}, {'mistake': 'whole-data'})
    """
    return MISTAKES[name].switch or {"mistake": name}
