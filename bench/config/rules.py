"""Which options go together: what makes a config impossible, found before any process starts. It imports no torch.

Every function takes a ``RunConfig`` and raises UserError, in one clear line, naming the variable and what to do.
"""

import dataclasses
import re
import shlex

from bench import mistakes
from bench.config import data_sets, hosts, own, tasks
from bench.config.data_sets import IN_MEMORY, OWN, data_kind
from bench.config.fields import variable_of
from bench.config.modes import MODES
from bench.config.values import parse_fault, parse_gpu_ids, parse_keep, parse_schedule, parse_snapshots
from bench.errors import UserError

MOST_THREADS = 4096
GPT, TIMM = "gpt", "timm:"
PERIODIC = ("step", "cyclic", "sawtooth")  # schedules with a period and a factor


def check(config, knobs: set[str]) -> None:
    """Everything that can be said of a config alone. knobs: the options that only some modes have."""
    check_mode(config)
    check_launcher(config)
    check_hosts(config)
    check_knobs(config, knobs)
    check_data(config)
    check_model(config)
    check_training(config)
    check_without_effect(config)
    check_mistake(config)
    check_elastic(config)
    if config.fault:
        parse_fault(config.fault, config.num_processes)
    if config.snapshots:
        parse_snapshots(config.snapshots)
    if config.label.probe:
        tasks.parse(config.label.probe)


def check_mode(config) -> None:
    """One device is one device."""
    most = MODES[config.mode].max_devices
    if most and config.num_devices > most:
        raise UserError(
            f"MODE={config.mode} is one device, but GPUS={config.gpu_ids or config.num_devices}: use "
            "GPUS=1, or MODE=dp, ddp or horovod"
        )
    if config.gpu_ids:
        check_gpu_ids(config)
    if config.threads and config.threads > MOST_THREADS:
        raise UserError(f"THREADS={config.threads} is too many: at most {MOST_THREADS}")
    if not config.out:
        raise UserError("OUT= is empty: name a folder")
    if max(config.warmup_steps or 0, config.timed_steps or 0) >= 2**31:
        raise UserError(f"WARMUP={config.warmup_steps} or STEPS={config.timed_steps} is too large: below 2**31")
    if config.seed >= 2**63:
        raise UserError(f"SEED={config.seed} is too large: below 2**63")


def check_gpu_ids(config) -> None:
    """GPUS=0,1 names GPUs: each once, and they are used."""
    ids = parse_gpu_ids(config.gpu_ids)
    if config.device == "cpu":
        raise UserError(f"GPUS={config.gpu_ids} names GPUs, and DEVICE=cpu uses none: use GPUS={len(ids)}")
    if config.share_gpu:
        raise UserError(
            f"GPUS={config.gpu_ids}: with SHARE_GPU=1 GPUS is the number of ranks on the first visible GPU: write "
            "GPUS=2, and choose that GPU with CUDA_VISIBLE_DEVICES"
        )


def check_data(config) -> None:
    """DATA and the options that only some data sets have."""
    if config.data is None:
        return
    kind, place = data_kind(config.data)
    if kind not in ("url", OWN) and kind not in data_sets.DATA_SETS:
        choices = ", ".join(data_sets.choices())
        raise UserError(f"unknown DATA={config.data}: choose one of {choices}")
    info = data_sets.info_of(config.data)
    if info.path and not place:
        raise UserError(f"DATA={config.data}: write DATA={kind}:PATH, the folder that holds train and val")
    if kind in IN_MEMORY and place:
        raise UserError(f"DATA={config.data}: {kind} takes no path; its files are looked for below DATA_DIR")
    if kind in IN_MEMORY and config.val_labels:
        raise UserError(f"DATA={kind} has its labels: VAL_LABELS is for DATA=imagefolder:PATH and tar:PATH")
    if info.workload != "images":
        check_not_images(config)
    elif config.context:
        raise UserError(f"CONTEXT is of sequences, and DATA={kind} has images: leave it out, or use DATA=stdlib")
    if kind in IN_MEMORY and (config.skip_bad or config.in_memory is not None):
        raise UserError(f"DATA={kind} is in memory and complete: leave SKIP_BAD and IN_MEMORY out")
    if config.decode == "cuda" and not info.path:
        raise UserError(f"DECODE=cuda decodes JPEG files, and DATA={kind} has none: leave it out")
    if config.decode == "cuda" and (config.skip_bad or config.in_memory):
        raise UserError("DECODE=cuda decodes whole batches, each time anew: leave SKIP_BAD and IN_MEMORY out, or use "
                        "DECODE=cpu")  # fmt: skip
    if not info.loader and config.workers:
        raise UserError(f"DATA={kind} comes from memory and has no loader: leave WORKERS at 0")
    if not info.loader and config.storage_ms:
        raise UserError(f"STORAGE_MS is a wait in the loader, and DATA={kind} has none: use DATA=digits")
    if not info.validation and (config.evaluate or config.target or config.replicas):
        raise UserError(
            f"DATA={kind} has no validation set: leave EVALUATE, TARGET and REPLICAS out, or use DATA=digits"
        )
    if not info.loader and config.augment:
        raise UserError(f"DATA={kind} is random already: leave AUGMENT out")
    if info.train_examples and config.per_device_batch and config.global_batch > info.train_examples:
        most = info.train_examples // config.num_devices // config.accumulate
        fewer = f"BATCH={most}" if most else f"GPUS={max(1, info.train_examples // config.accumulate)}"
        raise UserError(
            f"BATCH={config.per_device_batch} on {config.num_devices} devices needs {config.global_batch} images per "
            f"step, and DATA={kind} has {info.train_examples}: use {fewer} or less, or DATA=synthetic"
        )


def check_not_images(config) -> None:
    """Options of images with data that are something else."""
    images = {"IMAGE_SIZE": config.image_size, "AUGMENT": config.augment, "CHANNELS_LAST": config.channels_last,
              "IN_MEMORY": config.in_memory, "SKIP_BAD": config.skip_bad, "VAL_LABELS": config.val_labels,
              "CONTEXT": config.context if config.data != "stdlib" else None}  # fmt: skip
    if given := [name for name, value in images.items() if value]:
        of = "sequences" if given == ["CONTEXT"] else "images"
        raise UserError(f"{given[0]} is of {of}, and DATA={config.data} has none: leave it out")


def check_model(config) -> None:
    """MODEL goes with DATA, and the sizes of gpt with gpt."""
    info = data_sets.info_of(config.data) if config.data else None
    sizes = [name for name in ("layers", "width", "heads") if getattr(config, name)]
    foreign = bool(own.named(config.model or ""))
    if (config.model or "").endswith(".py"):
        raise UserError(f"MODEL={config.model} names no function of that file: write MODEL={config.model}:build, where "
                        "build is what it is called")  # fmt: skip
    if sizes and config.model != GPT and not (info and info.workload == "text" and config.model is None):
        raise UserError(f"{sizes[0].upper()} is of MODEL=gpt: leave it out, or use MODEL=gpt")
    if config.width and config.heads and config.width % config.heads:
        raise UserError(f"WIDTH={config.width} cannot be shared out to HEADS={config.heads}: a multiple of it")
    if config.model == GPT and info and info.workload != "text":
        raise UserError(f"MODEL=gpt learns text, and DATA={config.data} is something else: use DATA=stdlib")
    if info and info.workload == "text" and config.model not in (None, GPT) and not foreign:
        raise UserError(f"MODEL={config.model} takes images, and DATA={config.data} is text: use MODEL=gpt, or your "
                        f"own as {own.FORM}")  # fmt: skip
    if (config.model == GPT or (info and info.workload == "text")) and config.image_size:
        raise UserError("IMAGE_SIZE is of images, and MODEL=gpt learns text: leave it out")
    if config.pretrained == "torchvision" and (foreign or (config.model or "").startswith((GPT, TIMM, own.KERAS))):
        raise UserError(f"PRETRAINED=torchvision has no weights of MODEL={config.model}: name a file")


def check_training(config) -> None:
    """Options of training that exclude or need each other."""
    if parse_schedule(config.schedule)[1] and config.schedule_epochs != type(config).schedule_epochs:
        raise UserError(f"SCHEDULE={config.schedule} names its epochs: leave SCHEDULE_EPOCHS out")
    if config.bn_momentum and config.bn_momentum > 1:
        raise UserError(f"BN_MOMENTUM={config.bn_momentum:g} is the newest batch's share: at most 1, as in 0.1")
    if config.bn_momentum and config.norm not in ("batch", "sync"):
        raise UserError(
            f"BN_MOMENTUM is of batch norm, and NORM={config.norm} has none: leave it out, or use NORM=batch"
        )
    if config.nesterov and (config.optimizer != "sgd" or not config.momentum):
        raise UserError("NESTEROV=1 is a form of sgd with momentum: use OPTIMIZER=sgd and MOMENTUM above 0")
    if config.lr_warmup_steps and config.lr_warmup_epochs:
        raise UserError("LR_WARMUP_STEPS and LR_WARMUP_EPOCHS say the same twice: leave one of them out")
    if config.lr_warmup_epochs and not config.epochs:
        raise UserError("LR_WARMUP_EPOCHS needs EPOCHS: without epochs use LR_WARMUP_STEPS")
    if config.val_batch and not (config.epochs or config.evaluate):
        raise UserError("VAL_BATCH is the batch of a validation: give EPOCHS or EVALUATE=1, or leave it out")
    if config.freeze and config.train_only:
        raise UserError("FREEZE and TRAIN_ONLY exclude each other: leave one of them out")
    if config.evaluate and not (config.resume or config.pretrained):
        raise UserError("EVALUATE=1 validates weights that are there: give RESUME or PRETRAINED")
    if config.evaluate and config.epochs:
        raise UserError("EVALUATE=1 trains nothing: leave EPOCHS out")
    if config.evaluate and (config.track != "none" or config.checkpoint or config.profile or config.memory):
        raise UserError("EVALUATE=1 trains nothing: leave TRACK, CHECKPOINT, PROFILE and MEMORY out")
    if (config.epochs or config.evaluate) and (MODES[config.mode].baseline or not config.sync):
        what = "SYNC=0" if not config.sync else f"MODE={config.mode}"
        raise UserError(f"{what} is a bound on speed and trains no model: leave EPOCHS and EVALUATE out")
    if (config.checkpoint or config.checkpoint_steps) and not config.epochs:
        raise UserError(
            "checkpoints are of a training by epochs: give EPOCHS, or leave CHECKPOINT and CHECKPOINT_STEPS out"
        )
    if config.checkpoint is False and config.checkpoint_steps:
        raise UserError("CHECKPOINT=0 and CHECKPOINT_STEPS exclude each other: leave one of them out")
    if (config.ema or config.swa) and not config.epochs:
        raise UserError("EMA and SWA average the weights of a training by epochs: give EPOCHS (EVALUATE=1 with RESUME "
                        "validates what the checkpoint has of them)")  # fmt: skip
    if config.ema and config.ema >= 1:
        raise UserError(f"EMA={config.ema:g} is the average's share in each step: below 1, as in 0.999")
    if config.swa and config.swa > config.epochs:
        raise UserError(
            f"SWA={config.swa} is the first epoch that is averaged, and EPOCHS={config.epochs} ends before it"
        )
    if config.keep is not None:
        parse_keep(config.keep)
        if config.checkpoint is False or not config.epochs:
            raise UserError(f"KEEP={config.keep} keeps checkpoints of epochs: give EPOCHS, and leave CHECKPOINT=0 out")
    if config.resume and config.pretrained:
        raise UserError("RESUME brings its own weights: leave PRETRAINED out")
    if config.resume and not (config.epochs or config.evaluate):
        raise UserError("RESUME goes on with training by epochs: give EPOCHS (in all, with those already done)")
    if config.replicas and not config.epochs:
        raise UserError("REPLICAS=1 validates every rank after every epoch: give EPOCHS")
    if config.target and not config.epochs:
        raise UserError("TARGET is looked for after every epoch: give EPOCHS")
    images = config.data is None or data_sets.info_of(config.data).workload == "images"
    if config.target is not None and config.target > 1 and images and config.model != GPT:
        raise UserError(f"TARGET={config.target:g}: write an accuracy between 0 and 1, as in 0.98")
    if config.copy_to and data_kind(config.copy_to)[0] != "url":
        raise UserError(f"COPY_TO={config.copy_to} is not a URL: write one as s3://BUCKET/PREFIX")
    if config.norm == "sync" and not MODES[config.mode].sync_norm:
        raise UserError(f"MODE={config.mode} has no NORM=sync: its replicas cannot talk inside a forward pass; use ddp "
                        "or horovod")  # fmt: skip
    if config.param_dtype and config.precision not in (None, config.param_dtype):
        raise UserError(f"PARAM_DTYPE={config.param_dtype} is the type in which the step computes, and "
                        f"PRECISION={config.precision}: use PRECISION={config.param_dtype}")  # fmt: skip
    if config.compile and (why := MODES[config.mode].no_compile):
        raise UserError(f"MODE={config.mode} has no COMPILE=1: {why}; use ddp or horovod")
    info = MODES[config.mode]
    if ("weights" in info.shards or not info.same_update) and (config.ema or config.swa or config.replicas):
        what = "shards the weights over the ranks" if info.shards else "lets each rank's weights go their own way"
        raise UserError(f"MODE={config.mode} {what}, and EMA, SWA and REPLICAS need equal whole ones on every rank: "
                        "leave them out, or use ddp")  # fmt: skip
    if not config.sync and (config.loss_guard or config.norm == "sync"):
        raise UserError("SYNC=0 exchanges nothing, and LOSS_GUARD and NORM=sync ask all ranks: leave one of them out")
    if config.precision == "fp16" and config.compression == "powersgd":
        raise UserError("COMPRESSION=powersgd keeps what it left out for the next step, and one overflow of fp16 would "
                        "stay in it for ever: use PRECISION=bf16")  # fmt: skip
    if config.adasum and (config.precision == "fp16" or config.clip_norm or config.loss_guard):
        raise UserError("ADASUM=1 reduces inside the optimizer's step: PRECISION=fp16, CLIP_NORM and LOSS_GUARD, which "
                        "look at the gradients before it, cannot be had with it")  # fmt: skip


def check_without_effect(config) -> None:
    """An option that would change nothing was meant otherwise."""
    kind = parse_schedule(config.schedule)[0]
    needs = {
        "schedule_epochs": (kind in PERIODIC, f"SCHEDULE={' or '.join(PERIODIC)}"),
        "schedule_factor": (kind in PERIODIC, f"SCHEDULE={' or '.join(PERIODIC)}"),
        "momentum": (config.optimizer == "sgd", "OPTIMIZER=sgd"),
        "trust": (config.pretrained not in (None, "torchvision"), "PRETRAINED, a file"),
        "decode": (
            config.data is None or bool(data_sets.info_of(config.data).path),
            "DATA=imagefolder:PATH or tar:PATH",
        ),
    }
    for name, (has_effect, needed) in needs.items():
        value = getattr(config, name)
        if not has_effect and value != getattr(type(config), name):
            raise UserError(
                f"{name.upper()}={int(value) if value is True else value} changes nothing without {needed}: "
                "leave it out"
            )


def check_mistake(config) -> None:
    """A mistake is made where a right script would do something else, and nowhere else."""
    if config.mistake == "none":
        return
    if MODES[config.mode].baseline or not config.sync:
        raise UserError(f"MISTAKE={config.mistake} is made in a training: use MODE=ddp or horovod, and SYNC=1")
    if MODES[config.mode].shards or not MODES[config.mode].same_update:
        raise UserError(f"MISTAKE={config.mistake} is made where every rank holds all: use MODE=ddp or horovod")
    if config.resume or config.evaluate:
        raise UserError(f"MISTAKE={config.mistake} is made in a training from its start: leave RESUME and EVALUATE out")
    for requirement in mistakes.MISTAKES[config.mistake].requires:
        if not requirement.met(config):
            raise UserError(f"MISTAKE={config.mistake} needs {requirement.words}")


def check_elastic(config) -> None:
    """ELASTIC is of a training that can go on from what it has kept, under an engine that starts ranks again."""
    words = f"ELASTIC={config.elastic}"
    if not config.elastic:
        if config.restarts != type(config).restarts:
            raise UserError(f"RESTARTS={config.restarts} is how many interruptions ELASTIC survives: give ELASTIC=1, "
                            "or leave it out")  # fmt: skip
        return
    if not MODES[config.mode].elastic:
        able = " or ".join(name for name, info in MODES.items() if info.elastic)
        raise UserError(f"{words} goes on when a rank is lost, and MODE={config.mode} cannot: use MODE={able}")
    if config.elastic > config.num_devices:
        raise UserError(f"{words} is the least number of devices, and GPUS={config.num_devices} the most: use ELASTIC "
                        "between 1 and GPUS")  # fmt: skip
    if config.label.study or config.label.suite:
        raise UserError(f"{words} is of `bench run`: a run that was interrupted is no measurement to compare; leave it "
                        "out")  # fmt: skip
    if not config.epochs or config.checkpoint is False:
        raise UserError(f"{words} goes on from checkpoints, which are of a training by epochs: give EPOCHS (and "
                        "CHECKPOINT_STEPS, so that less is repeated), and leave CHECKPOINT=0 out")  # fmt: skip
    if config.launcher in ("spawn", "mpirun") or config.dist_url:
        raise UserError(f"{words} lets the ranks meet again after an interruption, by torchrun or horovodrun: leave "
                        "LAUNCHER and DIST_URL out")  # fmt: skip
    for name in ("replicas", "profile", "memory", "watch", "snapshots"):
        if getattr(config, name):
            raise UserError(f"{name.upper()} looks at a run from its start to its end, and with {words} a part of that "
                            "is lost: leave one of them out")  # fmt: skip
    if config.mistake != "none":
        raise UserError(f"{words}: MISTAKE={config.mistake} is made in a run from its start: leave one of them out")


def check_launcher(config) -> None:
    """Raise UserError when the launcher cannot start this mode, or the rendezvous cannot serve the launcher."""
    allowed = MODES[config.mode].launchers
    if config.launcher != "auto" and config.launcher not in allowed:
        raise UserError(f"LAUNCHER={config.launcher} cannot start MODE={config.mode}: use {' or '.join(allowed)}")
    if config.share_gpu and MODES[config.mode].one_process:
        raise UserError(f"SHARE_GPU=1 is for modes of several processes, and MODE={config.mode} is one: leave it out")
    if config.adasum and config.launcher == "horovodrun":
        raise UserError(
            "ADASUM=1 needs MPI, and horovodrun's ranks talk Gloo: leave LAUNCHER out, or use LAUNCHER=mpirun"
        )
    if config.numa_binding and config.launcher == "spawn":
        raise UserError("NUMA_BINDING=1 is torchrun's: leave LAUNCHER=spawn out")
    if config.dist_url is None:
        return
    if "torchrun" not in allowed:
        raise UserError(f"DIST_URL is for modes that rendezvous through torch.distributed, not MODE={config.mode}")
    if not re.fullmatch(r"tcp://[^:/]+:\d+|file:///.+", config.dist_url):
        raise UserError(f"DIST_URL={config.dist_url}: write tcp://HOST:PORT or file:///PATH")
    port = config.dist_url.rpartition(":")[2]
    if config.dist_url.startswith("tcp:") and not 0 < int(port) < 65536:
        raise UserError(f"DIST_URL={config.dist_url}: a port is between 1 and 65535")
    if config.dist_url.startswith("file:") and config.launcher not in ("auto", "spawn"):
        raise UserError("a file:// DIST_URL needs LAUNCHER=spawn: torchrun brings its own rendezvous")


def check_hosts(config) -> None:
    """HOSTS are machines that can be shared out, and nothing is asked for that belongs to one machine alone."""
    if not config.hosts:
        for name in ("remote", "iface"):
            if getattr(config, name):
                raise UserError(f"{name.upper()}={getattr(config, name)} is of several machines: give HOSTS, or leave "
                                "it out")  # fmt: skip
        return
    machines, words = hosts.parse(config.hosts), f"HOSTS={config.hosts}"
    if config.remote is not None and "{host}" not in config.remote:
        raise UserError(f"REMOTE={config.remote} does not say where the name goes: write {{host}} in it, as in "
                        "ssh {host}")  # fmt: skip
    try:
        shlex.split(config.remote or "")
    except ValueError as error:
        raise UserError(f"REMOTE={config.remote}: {error}") from None
    if config.gpu_ids:
        raise UserError(f"GPUS={config.gpu_ids} names the GPUs of one machine: with HOSTS give a number, and set "
                        "CUDA_VISIBLE_DEVICES on each machine")  # fmt: skip
    taken = hosts.share(machines, config.num_devices)
    if MODES[config.mode].one_process and config.num_devices > machines[0].slots:
        raise UserError(f"MODE={config.mode} is one process on one machine: {words} has GPUS={machines[0].slots} on "
                        f"{machines[0].name}, the first; use MODE=ddp or horovod for more")  # fmt: skip
    if not taken:
        raise UserError(f"GPUS={config.num_devices} cannot be had of {words}: the first machine takes what it has, "
                        f"several are used whole: GPUS={', '.join(map(str, hosts.possible(machines)))}")  # fmt: skip
    if len(taken) > 1 and config.share_gpu:
        raise UserError(f"SHARE_GPU=1 is all ranks on one GPU, and {words} are several machines: leave one of them out")
    if len(taken) > 1 and config.launcher == "spawn":
        raise UserError(f"LAUNCHER=spawn starts the processes of one machine, and {words} are several: use torchrun")
    if len(taken) > 1 and (config.launcher == "mpirun" or config.adasum):
        what = "ADASUM=1, which needs MPI" if config.adasum else "LAUNCHER=mpirun"
        raise UserError(f"{what}: bench starts mpirun on one machine alone, and {words} are several: start `bench run` "
                        "with mpirun itself, as in mpirun -np 4 -H a:2,b:2 bench run")  # fmt: skip
    if config.dist_url and not config.dist_url.startswith(f"tcp://{machines[0].name}:"):
        raise UserError(f"DIST_URL={config.dist_url}: with HOSTS the ranks meet on the first machine: write "
                        f"tcp://{machines[0].name}:PORT, or leave it out")  # fmt: skip


def check_knobs(config, knobs: set[str]) -> None:
    """Raise UserError when an option of an engine is given to a mode that has no such thing."""
    mine = MODES[config.mode].knobs
    for f in filter(lambda f: f.name in knobs, dataclasses.fields(config)):
        if getattr(config, f.name) == f.default:
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
