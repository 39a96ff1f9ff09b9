"""The table of data sets: what must be known of one before any file is read. It imports no torch.

To add a data set: write its file in its workload's folder, as in bench/workload/images, with a function ``load``, and
add its line here.
"""

import re
from dataclasses import dataclass

from bench.config import own


@dataclass(frozen=True)
class DataSetInfo:
    """One line of the table.

    module: the file that loads it, in its workload's folder. workload: as in bench/config/workloads.py. image_size:
    pixels per side unless given; None: by device, as for photographs. path: it is in a folder that the
    user names, ``DATA=KIND:PATH``; otherwise it comes whole into memory. augment: random crops and flips where nobody
    says otherwise. train_examples: how many there are, where that is known beforehand. validation: it has held-out
    examples. loader: it is read by loader workers. classes: how many, where that is known beforehand. numbers: images
    come as numbers, and not as bytes.
    """

    module: str
    image_size: int | None = None
    path: bool = False
    augment: bool = True
    train_examples: int | None = None
    validation: bool = True
    loader: bool = True
    workload: str = "images"
    classes: int | None = None
    numbers: bool = False


DATA_SETS = {
    "digits": DataSetInfo(  # 1797 less 360 held out
        "digits", image_size=16, augment=False, train_examples=1437, classes=10, numbers=True
    ),
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
    """What a person can write for DATA.

    >>> choices()[-3:]
    ['stdlib', 'a URL as s3://BUCKET/PREFIX', 'your own as FILE.py:FUNCTION']
    """
    named = [f"{name}:PATH" if info.path else name for name, info in DATA_SETS.items()]
    return [*named, URL, f"your own as {own.FORM}"]


def data_kind(data: str) -> tuple[str, str]:
    """What DATA names, as (kind, place); the kind of a URL is "url", that of a function of the user's "own".

    >>> data_kind("digits"), data_kind("tar:/data/imagenet"), data_kind("s3://bucket/flowers")
    (('digits', ''), ('tar', '/data/imagenet'), ('url', 's3://bucket/flowers'))
    >>> data_kind("mine/train.py:datasets")
    ('own', 'mine/train.py:datasets')
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", data):  # two characters or more: C:// is a drive
        return "url", data
    kind, _, place = data.partition(":")
    return (OWN, data) if kind not in DATA_SETS and own.named(data) else (kind, place)


def info_of(data: str) -> DataSetInfo:
    """The line of what DATA names; a URL holds files, as a folder does. Raises KeyError for an unknown kind."""
    kind, _ = data_kind(data)
    return OWN_INFO if kind == OWN else DATA_SETS["imagefolder" if kind == "url" else kind]
