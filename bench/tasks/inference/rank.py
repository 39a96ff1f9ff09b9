"""The plan and a rank of `bench infer`: it joins as in training, and classifies instead.

Rank r of N takes batches r, r + N, r + 2N, … of one list. Rank 0 writes RUN_DIR/predictions.csv in the list's order.
"""

import csv
import dataclasses
from dataclasses import dataclass
from pathlib import Path

from bench import files
from bench.config import tasks
from bench.config.data_sets import data_kind
from bench.config.options import RunConfig
from bench.errors import UserError
from bench.process.heartbeat import StatusWriter

NAME = "predictions.csv"  # config.leaves
MOST = 5  # classes per image
DIGITS = 5  # of a probability; the order of sums changes later ones


@dataclass(frozen=True)
class Plan:
    """folder: of images, with all below it. data: of the checkpoint's training, as in DATA. classes: their names, or
    none where they are unknown."""

    folder: str
    checkpoint: str
    data: str
    num_classes: int
    classes: tuple[str, ...] = ()

    def text(self) -> str:
        return tasks.text_of("predict", dataclasses.asdict(self))


def read_plan(text: str) -> Plan:
    _, values = tasks.parse(text)
    return Plan(**values | {"classes": tuple(values["classes"])})


def head(num_classes: int) -> list[str]:
    columns = ["name", "class", "probability"]
    for place in range(2, min(MOST, num_classes) + 1):
        columns += [f"class_{place}", f"probability_{place}"]
    return [*columns, "error"]


def run(config: RunConfig, run_dir: Path, status: StatusWriter) -> None:
    status.phase("joining the group")
    import torch

    from bench.modes import load_mode
    from bench.tasks.inference.files import Batches, images_below
    from bench.workload.loader import loader

    torch.set_num_threads(config.threads_per_process)
    mode, plan = load_mode(config.mode)(config), read_plan(config.label.probe)
    topology, folder = mode.topology, Path(plan.folder)
    status.phase("preparing the data")
    names = mode.gather(images_below(folder) if topology.rank == 0 else None)[0]
    batches = Batches(folder, names, config.per_device_batch, config.image_size)
    status.phase("building the model")
    model, to_float = build(config, plan, topology.device)
    mine = list(range(topology.rank, len(batches), topology.world_size))
    status.total(len(mine))
    found, unreadable = {}, {}
    for step, (images, numbers, bad) in enumerate(loader(config, topology, batches, mine, keep=False)):
        status.step(step)
        unreadable |= dict(bad)
        if numbers:
            found |= zip(numbers, classify(config, model, to_float(images.to(topology.device))), strict=True)
    status.phase("collecting results")
    parts = mode.gather((found, unreadable))
    if topology.rank == 0:
        write(run_dir / NAME, names, plan, *({k: v for part in parts for k, v in part[i].items()} for i in (0, 1)))
    status.phase("done")
    mode.close()


def build(config: RunConfig, plan: Plan, device) -> tuple:
    """The model with the checkpoint's weights in eval mode, and the conversion of bytes to floats."""
    from bench.training import checkpoint
    from bench.workload import load_workload, weights

    path, workload = Path(plan.checkpoint), load_workload(config, device)
    workload.num_outputs = plan.num_classes
    model = workload.model(config, 0, lambda note: None)
    weights.load_weights(model, checkpoint.read(path)["model"], path)
    return model.to(device).eval(), to_float(plan.data, device)


def to_float(data: str, device):
    """Bytes to floats, as in the training's data set. Raises UserError for data that are not images in files."""
    from bench.workload.images import ToFloat
    from bench.workload.images.photographs import ImageSet
    from bench.workload.images.small_sets import CIFAR10, FASHION_MNIST

    kind = data_kind(data)[0]
    known = {"imagefolder": ImageSet, "tar": ImageSet, "url": ImageSet, "cifar10": CIFAR10,
             "fashionmnist": FASHION_MNIST}  # fmt: skip
    if kind not in known:
        raise UserError(f"the checkpoint was trained on DATA={data}, whose images are not files: use one of "
                        f"{', '.join(known)}")  # fmt: skip
    return ToFloat(known[kind], device)


def classify(config: RunConfig, model, images) -> list[list[tuple[float, int]]]:
    """images [b, 3, S, S] -> (probability, class) of each image's likeliest classes, in falling order."""
    import torch

    from bench.training.loop import set_precision

    with torch.inference_mode(), set_precision(config):
        shares = model(images).float().softmax(1).double().cpu().numpy().round(DIGITS)  # [b, classes]
    order = (-shares).argsort(1, kind="stable")[:, :MOST]
    return [[(float(row[c]), int(c)) for c in best] for row, best in zip(shares, order, strict=True)]


def write(path: Path, names: list[str], plan: Plan, found: dict, unreadable: dict) -> None:
    columns = head(plan.num_classes)
    with files.atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8",
                                                                errors="surrogateescape") as file:  # fmt: skip
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        for number, name in enumerate(names):
            classes = plan.classes or range(plan.num_classes)
            cells = [cell for p, c in found.get(number, ()) for cell in (classes[c], f"{p:.{DIGITS}f}")]
            blank = [""] * (len(columns) - 2 - len(cells))
            table.writerow([name, *cells, *blank, unreadable.get(number, "")])
