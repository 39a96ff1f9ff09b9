"""The table of data sets: what must be known of one before any file is read. It imports no torch.

To add a data set: write its file in bench/workload/images, with a function ``load``, and add its line here.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class DataSetInfo:
    """One line of the table.

    module: the file that loads it, in its workload's folder. workload: as in bench/config/workloads.py. image_size:
    pixels per side unless given; None: by device, as for photographs. path: it is in a folder that the
    user names, ``DATA=KIND:PATH``; otherwise it comes whole into memory. augment: random crops and flips where nobody
    says otherwise. train_examples: how many there are, where that is known beforehand. validation: it has held-out
    examples. loader: it is read by loader workers.
    """

    module: str
    image_size: int | None = None
    path: bool = False
    augment: bool = True
    train_examples: int | None = None
    validation: bool = True
    loader: bool = True
    workload: str = "images"


DATA_SETS = {
    "digits": DataSetInfo("digits", image_size=16, augment=False, train_examples=1437),  # 1797 less 360 held out
    "synthetic": DataSetInfo("synthetic", augment=False, validation=False, loader=False),
    "fashionmnist": DataSetInfo("small_sets", image_size=28),
    "cifar10": DataSetInfo("small_sets", image_size=32),
    "imagefolder": DataSetInfo("photographs", path=True),
    "tar": DataSetInfo("photographs", path=True),
}
URL = "a URL as s3://BUCKET/PREFIX"
IN_MEMORY = tuple(name for name, info in DATA_SETS.items() if not info.path)


def choices() -> list[str]:
    """What a person can write for DATA.

    >>> choices()[-2:]
    ['tar:PATH', 'a URL as s3://BUCKET/PREFIX']
    """
    return [f"{name}:PATH" if info.path else name for name, info in DATA_SETS.items()] + [URL]


def data_kind(data: str) -> tuple[str, str]:
    """What DATA names, as (kind, place); the kind of a URL is "url".

    >>> data_kind("digits"), data_kind("tar:/data/imagenet"), data_kind("s3://bucket/flowers")
    (('digits', ''), ('tar', '/data/imagenet'), ('url', 's3://bucket/flowers'))
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", data):  # two characters or more: C:// is a drive
        return "url", data
    kind, _, place = data.partition(":")
    return kind, place


def info_of(data: str) -> DataSetInfo:
    """The line of what DATA names; a URL holds files, as a folder does. Raises KeyError for an unknown kind."""
    kind, _ = data_kind(data)
    return DATA_SETS["imagefolder" if kind == "url" else kind]
