"""One-time setup: Horovod, a template for your own model, ImageNet's folders."""

import contextlib
import sys
from pathlib import Path

from bench.cli.base import FROM_1, Command, action, require_argument, warn
from bench.config.flags import SWITCH
from bench.config.modes import MODES
from bench.errors import BenchError, UserError


def horovod(args) -> int:
    from bench.install import horovod_install

    horovod_install.install(args.gpu, bool(args.force), args.wheel_dir, args.jobs, args.timeout, bool(args.mpi))
    return 0


def provide_horovod(args) -> None:
    """Install Horovod before a command that can use it, where make called it, unless MODE needs none. If that fails,
    the command continues without it, except for a MODE that needs it. Output goes to standard error."""
    from bench.install import horovod_install

    name = getattr(args, "mode", None)
    mode = any(each in MODES and MODES[each].needs for each in (name or "").split(","))
    if name is not None and not mode:
        return
    try:
        with contextlib.redirect_stdout(sys.stderr):
            horovod_install.install(quiet=True)
    except BenchError as error:
        if mode:
            raise
        warn(f"bench: {error}")


def imagenet(args) -> int:
    from bench.storage.unpack import unpack

    to = Path(require_argument("OUT", args.out)).expanduser()
    train, val, labels = (given and Path(given).expanduser() for given in (args.train, args.val, args.labels))
    if not (train or val):
        raise UserError("TRAIN=… or VAL=… is needed: the archives ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar")
    if bool(val) != bool(labels):
        raise UserError("VAL and LABELS go together: the archive contains no class labels, the labels file does")
    unpack(train, val, labels, to, lambda sentence: print(sentence, flush=True))
    print(f"unpacked: DATA=imagefolder:{to}", flush=True)
    return 0


HOROVOD = Command(
    "install horovod", "set up", "build Horovod for the installed torch, and install it", "[GPU=nccl MPI=1]",
    run=horovod, flags={
        "--gpu": {"metavar": "GPU", "choices": ("auto", "none", "nccl", "here"), "default": "auto",
                  "help": "auto: NCCL if there is a GPU; none: CPUs only; nccl: for GPUs; here: only for the GPUs of "
                  "this machine, which compiles faster [auto]"},
        "--mpi": SWITCH | {"help": "with MPI, for LAUNCHER=mpirun and ADASUM; needs mpicxx"},
        "--force": SWITCH | {"help": "build again, even if it is installed or cached"},
        "--wheel-dir": {"metavar": "DIR", "help": "only build, and put the wheel into this folder"},
        "--jobs": FROM_1 | {"metavar": "N", "help": "compilers at a time [by cores and memory]"},
        "--timeout": FROM_1 | {"metavar": "SECONDS", "default": "1800", "help": "time limit [1800]"},
    },
)  # fmt: skip
WORKLOAD = Command(
    "install workload", "set up", "write FILE: a template for your own model and data, which runs unchanged",
    "FILE=mine.py", run=action("new_workload"),
    positional={"file": {"metavar": "FILE", "help": "a new Python file; an existing one is never replaced"}},
)  # fmt: skip
IMAGENET = Command(
    "install imagenet", "set up", "unpack ImageNet's archives into class folders for DATA=imagefolder",
    "TRAIN=tar VAL=tar LABELS=file OUT=folder", run=imagenet, gone={"--to": "--out"}, flags={
        "--train": {"metavar": "TAR", "help": "ILSVRC2012_img_train.tar, a tar with one tar per class"},
        "--val": {"metavar": "TAR", "help": "ILSVRC2012_img_val.tar, a tar of images"},
        "--labels": {"metavar": "FILE", "help": "classes of VAL: the development kit (folder or .tar.gz), its ground "
                     "truth, or a list of names and classes"},
        "--out": {"metavar": "FOLDER", "help": "folder for train/<class>/ and val/<class>/"},
    },
)  # fmt: skip
COMMAND = Command("install", "set up", "Horovod, a file to start your own model and data from, or ImageNet's folders",
                  parts=(HOROVOD, WORKLOAD, IMAGENET))  # fmt: skip
