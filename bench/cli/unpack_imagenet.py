"""`bench unpack-imagenet`: ImageNet's archives into the class folders that DATA=imagefolder reads."""

from pathlib import Path

from bench.cli.base import needed
from bench.errors import UserError
from bench.storage.unpack import unpack


def run(args) -> int:
    """Unpack what is given; the folder, as DATA takes it, is the last line."""
    to = Path(needed("TO", args.to)).expanduser()
    train, val, labels = (given and Path(given).expanduser() for given in (args.train, args.val, args.labels))
    if not (train or val):
        raise UserError("TRAIN=… or VAL=… is needed: the archives ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar")
    if bool(val) != bool(labels):
        raise UserError("VAL and LABELS go together: the archive has no classes, the labels file has them")
    unpack(train, val, labels, to, lambda sentence: print(sentence, flush=True))
    print(f"unpacked: DATA=imagefolder:{to}", flush=True)
    return 0
