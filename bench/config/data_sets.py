"""The table of data sets: facts that are needed before any file is read. It imports no torch. To add one: its file in
its workload's folder, as in bench/workload/images, with a function ``load``, and its line here."""

import re
from dataclasses import dataclass

from bench.config import own


@dataclass(frozen=True)
class DataSetInfo:
    module: str  # that loads it, in its workload's folder
    image_size: int | None = None  # pixels per side unless given; None: by device, as for photographs
    path: bool = False  # it is in a folder that the user names, DATA=KIND:PATH; otherwise it is loaded into memory
    augment: bool = True  # random crops and flips by default
    train_examples: int | None = None  # where that is known beforehand
    validation: bool = True  # it has held-out examples
    loader: bool = True  # it is read by loader workers
    workload: str = "images"  # as in bench/config/workloads.py
    classes: int | None = None  # where that is known beforehand
    numbers: bool = False  # images are floats, not bytes


DATA_SETS = {
    # 1797 minus 360 held out
    "digits": DataSetInfo("digits", image_size=16, augment=False, train_examples=1437, classes=10, numbers=True),
    "synthetic": DataSetInfo("synthetic", augment=False, validation=False, loader=False, classes=1000, numbers=True),
    "fashionmnist": DataSetInfo("small_sets", image_size=28, classes=10),
    "cifar10": DataSetInfo("small_sets", image_size=32, classes=10),
    "imagefolder": DataSetInfo("photographs", path=True),
    "tar": DataSetInfo("photographs", path=True),
    "stdlib": DataSetInfo("stdlib", augment=False, workload="text", classes=256),
}
OWN = "own"  # the kind of FILE.py:FUNCTION
OWN_INFO = DataSetInfo("", augment=False, workload="own")
URL = "a URL as s3://BUCKET/PREFIX"
IN_MEMORY = tuple(name for name, info in DATA_SETS.items() if not info.path)


def choices() -> list[str]:
    named = [f"{name}:PATH" if info.path else name for name, info in DATA_SETS.items()]
    return [*named, URL, f"your own as {own.FORM}"]


def data_kind(data: str) -> tuple[str, str]:
    """DATA as (kind, place); a URL has kind "url", a function of the user has kind "own".

    >>> data_kind("digits"), data_kind("tar:/data/imagenet"), data_kind("mine/train.py:datasets")
    (('digits', ''), ('tar', '/data/imagenet'), ('own', 'mine/train.py:datasets'))
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", data):  # two characters or more: C:// is a drive
        return "url", data
    kind, _, place = data.partition(":")
    return (OWN, data) if kind not in DATA_SETS and own.named(data) else (kind, place)


def info_of(data: str) -> DataSetInfo:
    """The entry of DATA; a URL contains files, like a folder. Raises KeyError for an unknown kind."""
    kind, _ = data_kind(data)
    return OWN_INFO if kind == OWN else DATA_SETS["imagefolder" if kind == "url" else kind]
