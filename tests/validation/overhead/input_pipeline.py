"""How fast one loader worker makes training batches of photographs: the harness's way and torchvision's plain recipe.

``python -m tests.validation.overhead.input_pipeline IMAGES IMAGE_SIZE PAIRS OUT``: IMAGES is a folder made by
``write_photographs``; OUT is a folder for ``rank0.json``. One worker makes blocks of batches of either kind in turns,
so that a disturbed machine favours neither. A batch takes from its start to that of the next; the first of
a block does not count, because the worker is still sending the other kind's last. Both read the same JPEG files and end
with a float batch, normalised, in the training process: the recipe normalises in the worker; the harness sends bytes
and normalises the batch here. Nothing is held in memory. The files are in the system's cache: this is the work, not the
disk.

``python -m tests.validation.overhead.input_pipeline FOLDER`` only makes the photographs, to train on with
DATA=imagefolder:FOLDER.
"""

import json
import sys
import time
from pathlib import Path

BATCH, BLOCK = 32, 4  # images; batches that count
IMAGES, WIDTH, HEIGHT, QUALITY = 128, 500, 375, 90  # about the mean size of ImageNet's
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
KINDS = ("harness", "torchvision")


def main() -> None:
    """One pair of blocks to warm up, then PAIRS; write what the blocks took, and the worker's CPU time."""
    import numpy as np
    import torch
    from torch.utils.data import DataLoader

    images, image_size, pairs, out = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    turns = [kind for pair in range(1 + pairs) for kind in (KINDS if pair % 2 else KINDS[::-1])]
    kinds = np.array([*np.repeat(turns, 1 + BLOCK), KINDS[0]])  # one batch more, to see the end of the last
    batches = list(zip(kinds, order(len(kinds)), strict=True))
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    scale, shift = 1 / (255 * std), mean / std
    starts = []
    loader = DataLoader(InTurns(images, image_size), None, sampler=batches, num_workers=1, prefetch_factor=8)
    for kind, (start, pixels) in zip(kinds, loader, strict=True):
        starts.append(start)
        if kind == "harness":
            pixels = (pixels * scale).sub_(shift)
    took = np.diff(starts, axis=0).reshape(len(turns), 1 + BLOCK, 2)[:, 1:].sum(1)[2:]  # [2 x pairs, (wall, CPU)]
    turns = np.array(turns[2:])
    blocks = {f"{kind}_s": took[turns == kind, 0].tolist() for kind in KINDS}
    blocks |= {f"{kind}_cpu_s": took[turns == kind, 1].tolist() for kind in KINDS}
    (out / "rank0.json").write_text(json.dumps(blocks))


def order(batches: int):
    """[batches, BATCH] draws: epoch x length + index."""
    import numpy as np

    rng, epochs = np.random.default_rng(0), -(-batches * BATCH // IMAGES)
    draws = np.concatenate([epoch * IMAGES + rng.permutation(IMAGES) for epoch in range(epochs)])
    return draws[: batches * BATCH].reshape(batches, BATCH)


class InTurns:
    """A data set of two kinds of batches: ``[kind, draws]`` is the clocks at its start, and images."""

    def __init__(self, images: Path, image_size: int):
        from torchvision import datasets, transforms

        from bench.workload.images.photographs import ImageSet
        from bench.workload.images.sources import FolderSource

        recipe = transforms.Compose([
            transforms.RandomResizedCrop(image_size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ])  # fmt: skip
        self.recipe = datasets.ImageFolder(images / "train", recipe)
        self.ours = ImageSet(FolderSource(images, train=True), image_size, train=True)

    def __getitem__(self, turn):
        from torch.utils.data import default_collate

        kind, draws = turn
        start = time.perf_counter(), time.process_time()
        if kind == "harness":
            return start, self.ours[draws][0]
        return start, default_collate([self.recipe[index] for index in (draws % IMAGES).tolist()])[0]


def write_photographs(folder: Path) -> None:
    """Class folders of JPEGs, cut from scikit-learn's two photographs and enlarged, always the same; train and val."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(0)
    for name, photograph in zip(("a", "b"), load_sample_images().images, strict=True):
        below = folder / "train" / name
        below.mkdir(parents=True)
        height, width = photograph.shape[:2]
        for number in range(IMAGES // 2):
            w = int(rng.integers(width // 2, width + 1))
            h = min(height, w * HEIGHT // WIDTH)
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            cut = Image.fromarray(photograph).crop((left, top, left + w, top + h))
            cut.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(below / f"{number:03}.jpg", quality=QUALITY)
        (folder / "val" / name).mkdir(parents=True)
        cut.save(folder / "val" / name / "0.jpg", quality=QUALITY)


if __name__ == "__main__":
    main() if len(sys.argv) > 2 else write_photographs(Path(sys.argv[1]))
