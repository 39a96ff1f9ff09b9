"""The batches of one process: their examples, order and loader workers.

``dataset[draws]`` (sharding.py) is the inputs and targets of these draws, as tensors, and the names of examples that
could not be read."""

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch.utils.data import DataLoader

from bench.config.options import RunConfig
from bench.config.sections import Data
from bench.errors import UserError
from bench.workload import sharding


class SlowStorage:
    """A data set on a simulated storage that takes ``milliseconds`` per image."""

    def __init__(self, dataset, milliseconds: float):
        self.dataset, self.milliseconds = dataset, milliseconds
        for name in ("num_classes", "mean", "std", "finish_on", "finish", "decoder"):
            setattr(self, name, getattr(dataset, name, None))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, draws: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
        time.sleep(self.milliseconds * len(draws) / 1000)
        return self.dataset[draws]

    def augmentation_seeds(self, draws: np.ndarray) -> np.ndarray:
        return self.dataset.augmentation_seeds(draws)


def training_set(config: RunConfig, dataset, unit: str, where: str = "", smaller: str = "GPUS"):
    """The data set, on a simulated storage with STORAGE_MS. unit: the name of an example. Raises UserError if one step
    needs more examples than there are."""
    if len(dataset) < config.global_batch and not config.evaluate:
        raise UserError(
            f"a step of {config.global_batch} {unit} (BATCH x GPUS x ACCUMULATE) is more than the {len(dataset)} "
            f"{where}that DATA={config.data} has: use a smaller BATCH or {smaller}"
        )
    return SlowStorage(dataset, config.storage_ms) if config.storage_ms else dataset


class Draws:
    """A sampler: for each step the draws of this process, [per_device_batch x accumulate x devices_per_process].

    The passes (ACCUMULATE) take one part of a step's global batch after the other; each part is partitioned over the
    devices.
    """

    def __init__(
        self, config: RunConfig, topology, num_images: int, steps: int, first: int = 0,
        order: Callable = sharding.epoch_permutation,
    ):  # fmt: skip
        self.config, self.topology, self.steps = config, topology, steps
        self.stream = functools.partial(
            sharding.global_batches, num_images, config.seed, config.global_batch, first, order
        )

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[np.ndarray]:
        devices = self.topology.devices_per_process
        first, total = self.topology.rank * devices, self.topology.num_devices
        for batch in itertools.islice(self.stream(), self.steps):
            passes = np.split(batch, self.config.accumulate)
            yield np.concatenate([sharding.shard(part, first, devices, total) for part in passes])


def training_batches(
    config: RunConfig, topology, dataset, steps: int, first: int = 0, order: Callable = sharding.epoch_permutation,
    keep: bool = True,
) -> DataLoader:  # fmt: skip
    """``steps`` batches for this process: images [b, 3, H, W], labels [b], unreadable names; b as in ``Draws``. first,
    order: as in ``sharding.global_batches``. keep: as in ``loader``."""
    return loader(config, topology, dataset, Draws(config, topology, len(dataset), steps, first, order), keep)


def validation_batches(config: RunConfig, topology, dataset, whole: bool = False) -> DataLoader:
    """This process's share of a validation set: rank r takes images r, r + N, r + 2N, …, so that each is validated
    once; ``whole``: all images. Batches of [≤ b, 3, H, W], b = VAL_BATCH (or BATCH) x devices of this process."""
    mine = np.arange(len(dataset)) if whole else np.arange(topology.rank, len(dataset), topology.world_size)
    batch = (config.val_batch or config.per_device_batch) * topology.devices_per_process
    shares = [mine[i : i + batch] for i in range(0, len(mine), batch)]
    return loader(config, topology, dataset, shares, keep=False)


def loader(config: Data, topology, dataset, draws, keep: bool) -> DataLoader:
    """Prefetches two batches per worker, into pinned memory for a GPU. WORKERS is the total over all processes. keep:
    whether the workers stay alive after the last batch."""
    finish = dataset.finish if getattr(dataset, "finish_on", None) else None
    kind = functools.partial(FinishingLoader, finish=finish, device=topology.device) if finish else DataLoader
    share = config.workers // topology.world_size + (topology.rank < config.workers % topology.world_size)
    return kind(
        dataset,
        batch_size=None,  # the data set makes a complete batch from an array of draws
        sampler=draws,
        num_workers=share,
        persistent_workers=keep and share > 0,
        pin_memory=topology.device.type == "cuda" and config.data != "synthetic",
        generator=torch.Generator(),  # the training process's random state is unchanged
    )


class FinishingLoader(DataLoader):
    """A loader whose batches are finished on this process's device: a thread with its own CUDA stream prepares the next
    one during the step. Without workers there is no thread, because the data set then uses the process's random state.

    finish: a batch of the data set -> (inputs on the device, targets, names).
    """

    def __init__(self, *arguments, finish: Callable, device: torch.device, **options):
        super().__init__(*arguments, **options)
        self.finish, self.device = finish, device

    def __iter__(self) -> Iterator:
        batches = super().__iter__()
        return self.ahead(batches) if self.num_workers else map(self.finish, batches)

    def ahead(self, batches: Iterator) -> Iterator:
        on_gpu = self.device.type == "cuda"
        stream = torch.cuda.Stream(self.device) if on_gpu else None

        def finished() -> tuple:
            batch = next(batches, None)
            if batch is None or not on_gpu:
                return batch and self.finish(batch), None
            with torch.cuda.device(self.device), torch.cuda.stream(stream):
                return self.finish(batch), stream.record_event()

        with ThreadPoolExecutor(1, thread_name_prefix="finish") as thread:
            following = thread.submit(finished)
            while (found := following.result())[0] is not None:
                following = thread.submit(finished)
                batch, done = found
                if done:
                    current = torch.cuda.current_stream(self.device)
                    current.wait_event(done)
                    batch[0].record_stream(current)  # keep its memory until the end of the step
                yield batch


def plain_errors(batches: Iterator) -> Iterator:
    """The batches, without the traceback that torch adds to a loader worker's UserError."""
    try:
        yield from batches
    except UserError as error:
        raise UserError(str(error).strip().splitlines()[-1].removeprefix("bench.errors.UserError: ")) from None
