"""What makes a config impossible, found before any process starts. One clear line each; it imports no torch.

Every function takes a ``RunConfig`` and raises UserError naming the variable and what to do.
"""

import dataclasses
import re

from bench.config.modes import MODES
from bench.errors import UserError

FAULT_KINDS = ("raise", "kill", "hang")
IN_MEMORY_SETS = ("digits", "synthetic", "fashionmnist", "cifar10")  # data sets that need no place
PLACED_SETS = ("imagefolder", "tar")  # KIND:PATH
DIGITS_TRAIN_IMAGES = 1437  # scikit-learn's 1797 digits, less the 360 held out for validation


def flag_of(f: dataclasses.Field) -> str:
    """The command line's name of a field: ``--gpus``. The Makefile's is the same in capitals: ``GPUS``."""
    return "--" + (f.metadata["flag"] or f.name).replace("_", "-")


def variable_of(f: dataclasses.Field) -> str:
    """The Makefile's name of a field, used in messages: ``GPUS``."""
    return (f.metadata["flag"] or f.name).upper()


def check(config, knobs: set[str]) -> None:
    """Everything that can be said of a config alone. knobs: the options that only some modes have."""
    check_mode(config)
    check_launcher(config)
    check_knobs(config, knobs)
    check_data(config)
    check_training(config)
    check_mistake(config)
    if config.fault:
        parse_fault(config.fault, config.num_processes)
    if config.snapshots:
        parse_snapshots(config.snapshots)


def check_mode(config) -> None:
    """One device is one device."""
    most = MODES[config.mode].max_devices
    if most and config.num_devices > most:
        raise UserError(
            f"MODE={config.mode} is one device, but GPUS={config.num_devices}: use GPUS=1, or MODE=dp, ddp or horovod"
        )
    if config.seed >= 2**63:
        raise UserError(f"SEED={config.seed} is too large: below 2**63")


def data_kind(data: str) -> tuple[str, str]:
    """What DATA names, as (kind, place); the kind of a URL is "url".

    >>> data_kind("digits"), data_kind("tar:/data/imagenet"), data_kind("s3://bucket/flowers")
    (('digits', ''), ('tar', '/data/imagenet'), ('url', 's3://bucket/flowers'))
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", data):  # two characters or more: C:// is a drive
        return "url", data
    kind, _, place = data.partition(":")
    return kind, place


def check_data(config) -> None:
    """DATA and the options that only some kinds of data have."""
    if config.data is None:
        return
    kind, place = data_kind(config.data)
    if kind not in ("url", *IN_MEMORY_SETS, *PLACED_SETS):
        choices = ", ".join([*IN_MEMORY_SETS, *(f"{name}:PATH" for name in PLACED_SETS)])
        raise UserError(f"unknown DATA={config.data}: choose one of {choices}, or a URL as s3://BUCKET/PREFIX")
    if kind in PLACED_SETS and not place:
        raise UserError(f"DATA={config.data}: write DATA={kind}:PATH, the folder that holds train and val")
    if kind in IN_MEMORY_SETS and place:
        raise UserError(f"DATA={config.data}: {kind} takes no path; its files are looked for below DATA_DIR")
    if kind in IN_MEMORY_SETS and (config.skip_bad or config.in_memory is not None):
        raise UserError(f"DATA={kind} lies in memory and is whole: leave SKIP_BAD and IN_MEMORY out")
    if kind == "synthetic":
        check_synthetic(config)
    if kind == "digits" and config.per_device_batch:
        check_batch(config)


def check_synthetic(config) -> None:
    """Synthetic data have no loader, no storage and no validation set."""
    if config.workers:
        raise UserError("DATA=synthetic comes from memory and has no loader: leave WORKERS at 0")
    if config.storage_ms:
        raise UserError("STORAGE_MS is a wait in the loader, and DATA=synthetic has none: use DATA=digits")
    if config.evaluate or config.target or config.replicas:
        raise UserError(
            "DATA=synthetic has no validation set: leave EVALUATE, TARGET and REPLICAS out, or use DATA=digits"
        )
    if config.augment:
        raise UserError("DATA=synthetic is random already: leave AUGMENT out")


def check_training(config) -> None:
    """Options of training that exclude or need each other."""
    if config.nesterov and (config.optimizer != "sgd" or not config.momentum):
        raise UserError("NESTEROV=1 is a form of sgd with momentum: use OPTIMIZER=sgd and MOMENTUM above 0")
    if config.lr_warmup_steps and config.lr_warmup_epochs:
        raise UserError("LR_WARMUP_STEPS and LR_WARMUP_EPOCHS say the same twice: leave one of them out")
    if config.lr_warmup_epochs and not config.epochs:
        raise UserError("LR_WARMUP_EPOCHS needs EPOCHS: without epochs use LR_WARMUP_STEPS")
    if config.freeze and config.train_only:
        raise UserError("FREEZE and TRAIN_ONLY exclude each other: leave one of them out")
    if config.evaluate and not (config.resume or config.pretrained):
        raise UserError("EVALUATE=1 validates weights that are there: give RESUME or PRETRAINED")
    if config.evaluate and config.epochs:
        raise UserError("EVALUATE=1 trains nothing: leave EPOCHS out")
    if config.evaluate and (config.track != "none" or config.checkpoint or config.profile):
        raise UserError("EVALUATE=1 trains nothing: leave TRACK, CHECKPOINT and PROFILE out")
    if (config.epochs or config.evaluate) and (MODES[config.mode].baseline or not config.sync):
        what = "SYNC=0" if not config.sync else f"MODE={config.mode}"
        raise UserError(f"{what} is a bound on speed and trains no model: leave EPOCHS and EVALUATE out")
    if (config.checkpoint or config.checkpoint_steps) and not config.epochs:
        raise UserError(
            "checkpoints are of a training by epochs: give EPOCHS, or leave CHECKPOINT and CHECKPOINT_STEPS out"
        )
    if config.checkpoint is False and config.checkpoint_steps:
        raise UserError("CHECKPOINT=0 and CHECKPOINT_STEPS exclude each other: leave one of them out")
    if config.resume and config.pretrained:
        raise UserError("RESUME brings its own weights: leave PRETRAINED out")
    if config.resume and not (config.epochs or config.evaluate):
        raise UserError("RESUME goes on with training by epochs: give EPOCHS (in all, with those already done)")
    if config.replicas and not config.epochs:
        raise UserError("REPLICAS=1 validates every rank after every epoch: give EPOCHS")
    if config.target and not config.epochs:
        raise UserError("TARGET is looked for after every epoch: give EPOCHS")
    if config.target is not None and config.target > 1:
        raise UserError(f"TARGET={config.target:g}: write an accuracy between 0 and 1, as in 0.98")
    if config.copy_to and data_kind(config.copy_to)[0] != "url":
        raise UserError(f"COPY_TO={config.copy_to} is not a URL: write one as s3://BUCKET/PREFIX")
    if config.norm == "sync" and not MODES[config.mode].sync_norm:
        raise UserError(f"MODE={config.mode} has no NORM=sync: its replicas cannot talk inside a forward pass; use ddp "
                        "or horovod")  # fmt: skip
    if config.compile and not MODES[config.mode].compiles:
        raise UserError(f"MODE={config.mode} has no COMPILE=1: it copies the model every step, and PyTorch does not "
                        "compile such copies; use ddp or horovod")  # fmt: skip
    if not config.sync and (config.loss_guard or config.norm == "sync"):
        raise UserError("SYNC=0 exchanges nothing, and LOSS_GUARD and NORM=sync ask all ranks: leave one of them out")
    if config.precision == "fp16" and config.compression == "powersgd":
        raise UserError("COMPRESSION=powersgd keeps what it left out for the next step, and one overflow of fp16 would "
                        "stay in it for ever: use PRECISION=bf16")  # fmt: skip
    if config.adasum and (config.precision == "fp16" or config.clip_norm or config.loss_guard):
        raise UserError("ADASUM=1 reduces inside the optimizer's step: PRECISION=fp16, CLIP_NORM and LOSS_GUARD, which "
                        "look at the gradients before it, cannot be had with it")  # fmt: skip


# What there must be for a mistake to be made: words, a function of a config, and the mistakes.
MISTAKE_NEEDS = [
    ("several processes: MODE=ddp or horovod, GPUS=2 or more", lambda c: c.num_processes > 1,
     ("whole-data", "rank-metrics", "many-writers", "rank0-collective", "same-augmentation", "lost-remainder")),
    ("several devices: GPUS=2 or more", lambda c: c.num_devices > 1, ("gradient-sum",)),
    ("a training by epochs: EPOCHS", lambda c: c.epochs, ("rank-metrics", "many-writers", "rank0-collective")),
    ("a second epoch: EPOCHS=2 or more", lambda c: c.epochs > 1, ("no-reshuffle",)),
    ("data with a validation set, which DATA=synthetic has not", lambda c: c.data != "synthetic",
     ("rank-metrics", "rank0-collective")),
    ("checkpoints: leave CHECKPOINT=0 out", lambda c: c.checkpoint is not False, ("many-writers",)),
    ("AUGMENT=1", lambda c: c.augment is not False, ("same-augmentation",)),
    ("LR_BATCH, and another global batch", lambda c: c.lr_batch and not (c.per_device_batch and
     c.global_batch == c.lr_batch), ("lr-not-scaled",)),
    ("PRETRAINED, a file", lambda c: c.pretrained not in (None, "torchvision"), ("strict-false",)),
    ("the plain exchange: leave OVERLAP, COMPRESSION and ADASUM out",
     lambda c: c.overlap and c.compression == "none" and not c.adasum, ("gradient-sum",)),
]  # fmt: skip


def check_mistake(config) -> None:
    """A mistake is made where a right script would do something else, and nowhere else."""
    if config.mistake == "none":
        return
    if MODES[config.mode].baseline or not config.sync:
        raise UserError(f"MISTAKE={config.mistake} is made in a training: use MODE=ddp or horovod, and SYNC=1")
    if config.resume or config.evaluate:
        raise UserError(f"MISTAKE={config.mistake} is made in a training from its start: leave RESUME and EVALUATE out")
    for words, there, names in MISTAKE_NEEDS:
        if config.mistake in names and not there(config):
            raise UserError(f"MISTAKE={config.mistake} needs {words}")


def check_value(f: dataclasses.Field, value) -> None:
    """Raise UserError when a value is not of its field's type, choices or range. None is always allowed."""
    if value is None:
        return
    meta, name = f.metadata, variable_of(f)
    if meta["choices"] and value not in meta["choices"]:
        raise UserError(f"unknown {name}={value}: choose one of {', '.join(meta['choices'])}")
    if meta["min"] is not None and not value >= meta["min"]:
        raise UserError(f"{name}={value} is too small: at least {meta['min']}")
    if meta["above"] is not None and not value > meta["above"]:
        raise UserError(f"{name}={value} must be above {meta['above']}")
    if (isinstance(value, float) and value != value) or value in (float("inf"), float("-inf")):
        raise UserError(f"{name}={value} is not a finite number")


def check_launcher(config) -> None:
    """Raise UserError when the launcher cannot start this mode, or the rendezvous cannot serve the launcher."""
    allowed = MODES[config.mode].launchers
    if config.launcher != "auto" and config.launcher not in allowed:
        raise UserError(f"LAUNCHER={config.launcher} cannot start MODE={config.mode}: use {' or '.join(allowed)}")
    if config.share_gpu and MODES[config.mode].one_process:
        raise UserError(f"SHARE_GPU=1 is for modes of several processes, and MODE={config.mode} is one: leave it out")
    if config.dist_url is None:
        return
    if "torchrun" not in allowed:
        raise UserError(f"DIST_URL is for modes that rendezvous through torch.distributed, not MODE={config.mode}")
    if not re.fullmatch(r"tcp://[^:/]+:\d+|file:///.+", config.dist_url):
        raise UserError(f"DIST_URL={config.dist_url}: write tcp://HOST:PORT or file:///PATH")
    port = config.dist_url.rpartition(":")[2]
    if config.dist_url.startswith("tcp:") and not 0 < int(port) < 65536:
        raise UserError(f"DIST_URL={config.dist_url}: a port lies between 1 and 65535")
    if config.dist_url.startswith("file:") and config.launcher not in ("auto", "spawn"):
        raise UserError("a file:// DIST_URL needs LAUNCHER=spawn: torchrun brings its own rendezvous")


def check_knobs(config, knobs: set[str]) -> None:
    """Raise UserError when an option of an engine is given to a mode that has no such thing."""
    mine = MODES[config.mode].knobs
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if value == f.default or f.name not in knobs:
            continue
        owners = [name for name, info in MODES.items() if f.name in info.knobs]
        if f.name not in mine:
            raise UserError(f"{variable_of(f)} is an option of MODE={' and '.join(owners)}, not of {config.mode}")
    if config.compression not in ("none", *mine.get("compression", ())):
        allowed = ", ".join(("none", *mine["compression"]))
        raise UserError(f"MODE={config.mode} has no COMPRESSION={config.compression}: choose one of {allowed}")
    if not config.overlap and config.compression != "none":
        raise UserError("OVERLAP=0 sends plain gradients after the backward pass: leave COMPRESSION out")
    if config.adasum and not (config.overlap and config.sync):
        raise UserError("ADASUM=1 is a reduction of its own: leave OVERLAP and SYNC out")


def check_batch(config) -> None:
    """Raise UserError when one step would need more images than the data set has."""
    if config.global_batch > DIGITS_TRAIN_IMAGES:
        raise UserError(
            f"BATCH={config.per_device_batch} on {config.num_devices} devices needs {config.global_batch} images a "
            f"step, and DATA=digits has {DIGITS_TRAIN_IMAGES}: use "
            f"BATCH={DIGITS_TRAIN_IMAGES // config.num_devices // config.accumulate} or less, or DATA=synthetic"
        )


def parse_fault(text: str, num_processes: int) -> tuple[str, int, int]:
    """``kill:1:3`` -> ("kill", rank 1, step 3). Raise UserError for anything else."""
    match = re.fullmatch(rf"({'|'.join(FAULT_KINDS)}):(\d+):(\d+)", text)
    if not match or int(match[2]) >= num_processes:
        raise UserError(
            f"FAULT={text}: write raise|kill|hang:RANK:STEP, as in kill:0:3, with RANK below {num_processes}, the "
            "processes that this MODE and GPUS give"
        )
    return match[1], int(match[2]), int(match[3])


def parse_snapshots(text: str) -> list[int]:
    """``1,5,20`` -> [1, 5, 20]. Raise UserError for anything else."""
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise UserError(f"SNAPSHOTS={text}: write steps with commas between, as in 1,5,20")
    return [int(step) for step in text.split(",")]
