"""Constraints between options, checked before any process starts. It imports no torch.

Every function takes a ``RunConfig`` and yields one line per error: the variable, and what to do.
"""

import itertools
import re
import shlex
from collections.abc import Iterator

from bench import mistakes
from bench.config import data_sets, hosts, own, tasks
from bench.config.data_sets import IN_MEMORY, OWN, data_kind
from bench.config.fields import in_words, variable_of
from bench.config.modes import MODES
from bench.config.values import parse_fault, parse_gpu_ids, parse_keep, parse_schedule, parse_snapshots
from bench.errors import UserError

GPT, TIMM = "gpt", "timm:"
PERIODIC = ("step", "cyclic", "sawtooth")  # schedules with a period and a factor


def workload(c) -> str:
    return data_sets.info_of(c.data).workload if c.data else "text" if c.model == GPT else "images"


def has_files(c) -> bool:
    return c.data is None or data_sets.info_of(c.data).path


def equal_weights(c) -> bool:
    return "weights" not in MODES[c.mode].shards and MODES[c.mode].same_update


def trains_alike(c) -> bool:
    info = MODES[c.mode]
    return c.sync and not info.baseline and not info.shards and info.same_update


def periodic(c) -> bool:
    return parse_schedule(c.schedule)[0] in PERIODIC


# fmt: off
# Options -> whether they have an effect, their requirement, and the option that determines it.
NEEDS = {
    "lr_warmup_epochs checkpoint checkpoint_steps ema swa keep replicas target": (lambda c: c.epochs, "EPOCHS", ""),
    "epochs evaluate": (lambda c: not MODES[c.mode].baseline, "a mode that trains a model", "mode"),
    "ema swa replicas": (equal_weights, "equal weights on every rank, as with MODE=ddp", "mode"),
    "ema": (lambda c: c.ema < 1, "a value below 1, as in 0.999", ""),
    "swa": (lambda c: c.swa <= c.epochs, "at least as many EPOCHS", "epochs"),
    "val_batch resume": (lambda c: c.epochs or c.evaluate, "EPOCHS or EVALUATE=1", ""),
    "evaluate": (lambda c: c.resume or c.pretrained, "RESUME or PRETRAINED", ""),
    "nesterov": (lambda c: c.optimizer == "sgd" and c.momentum, "OPTIMIZER=sgd and MOMENTUM above 0", ""),
    "momentum": (lambda c: c.optimizer == "sgd", "OPTIMIZER=sgd", "optimizer"),
    "bn_momentum": (lambda c: c.norm in ("batch", "sync"), "NORM=batch or sync", "norm"),
    "schedule_epochs schedule_factor": (periodic, f"SCHEDULE={' or '.join(PERIODIC)}", "schedule"),
    "trust": (lambda c: c.pretrained not in (None, "torchvision"), "PRETRAINED, a file", "pretrained"),
    "decode val_labels skip_bad in_memory": (has_files, "DATA=imagefolder:PATH or tar:PATH", "data"),
    "image_size augment channels_last": (lambda c: workload(c) == "images", "DATA of images", "data"),
    "context": (lambda c: c.data in (None, "stdlib"), "DATA=stdlib", "data"),
    "layers width heads": (lambda c: (c.model or GPT) == GPT and workload(c) == "text", "MODEL=gpt", "model"),
    "share_gpu": (lambda c: not MODES[c.mode].one_process, "a mode of several processes", "mode"),
    "dist_url": (lambda c: "torchrun" in MODES[c.mode].launchers, "a mode of torch.distributed", "mode"),
    "numa_binding": (lambda c: c.launcher != "spawn", "LAUNCHER=torchrun", "launcher"),
    "adasum": (lambda c: c.launcher != "horovodrun", "MPI, so LAUNCHER=mpirun", "launcher"),
    "param_dtype": (lambda c: c.precision in (None, c.param_dtype), "the same PRECISION", "precision"),
    "copy_to": (lambda c: data_kind(c.copy_to)[0] == "url", "a URL such as s3://BUCKET/PREFIX", ""),
    "mistake": (trains_alike, "replicas with equal updates (MODE=ddp or horovod, without INJECT=no-exchange)", ""),
    "elastic": (lambda c: MODES[c.mode].elastic, "MODE=ddp or horovod", "mode"),
    "restarts": (lambda c: c.elastic, "MIN_DEVICES", ""),
    "remote iface": (lambda c: c.hosts, "HOSTS", ""),
}
# Option -> those that exclude it, and why.
EXCLUDES = {
    "lr_warmup_steps": ("lr_warmup_epochs", "both are the length of the warm-up"),
    "freeze": ("train_only", "both choose which parameters are trained"),
    "resume": ("pretrained", "a checkpoint brings its own weights"),
    "evaluate": ("epochs track checkpoint profile memory", "EVALUATE=1 does not train"),
    "adasum": ("overlap sync clip_norm loss_guard", "Adasum reduces inside the optimizer's step"),
    "overlap": ("compression", "OVERLAP=0 sends uncompressed gradients after the backward pass"),
    "sync": ("epochs evaluate loss_guard", "a step without communication does not train a model"),
    "share_gpu": ("gpu_ids", "all ranks use the first visible GPU: choose it with CUDA_VISIBLE_DEVICES"),
    "hosts": ("gpu_ids", "GPU indices apply to one machine: set CUDA_VISIBLE_DEVICES on each"),
    "activation_checkpointing": ("compile", "the compiler chooses what is recomputed"),
    "mistake": ("resume evaluate", "a mistake is injected only into a run that trains from the start"),
    "elastic": ("replicas profile memory watch snapshots mistake", "the data of a lost rank would be missing"),
}
# fmt: on


def check(config, knobs: set[str]) -> None:
    """Raise UserError for the first error. knobs: the options that only some modes have."""
    everything = (mode, launcher, several_hosts, data, model, needs, training, mistake, elastic)
    for problem in itertools.chain(of_some_modes(config, knobs), *(rule(config) for rule in everything)):
        raise UserError(problem)
    if config.fault:
        parse_fault(config.fault, config.num_processes)
    if config.snapshots:
        parse_snapshots(config.snapshots)
    if config.label.probe:
        tasks.parse(config.label.probe)


def is_given(c, name: str) -> bool:
    """Not at its default; a 0 from ``resolve`` does not count as given."""
    value, default = getattr(c, name), getattr(type(c), name)
    return value is not None and value != default and bool(value or default)


def option_text(c, name: str) -> str:
    return in_words(type(c).__dataclass_fields__[name], getattr(c, name))


def variable(c, name: str) -> str:
    return variable_of(type(c).__dataclass_fields__[name])


def needs(c) -> Iterator[str]:
    for names, (has_effect, needed, decides) in NEEDS.items():
        for name in names.split():
            if is_given(c, name) and not has_effect(c):
                instead = f", not {option_text(c, decides)}" if decides and getattr(c, decides) else ""
                yield f"{option_text(c, name)} needs {needed}{instead}: give that, or leave {variable(c, name)} out"
    for name, (others, why) in EXCLUDES.items():
        for other in others.split():
            if is_given(c, name) and is_given(c, other):
                both = f"{option_text(c, name)} and {option_text(c, other)}"
                yield f"{both} exclude each other ({why}): leave one of them out"


def of_some_modes(c, knobs: set[str]) -> Iterator[str]:
    mine = MODES[c.mode].knobs
    for name in sorted(knobs - mine.keys()):
        if getattr(c, name) != getattr(type(c), name):
            owners = " and ".join(mode for mode, info in MODES.items() if name in info.knobs)
            yield f"{option_text(c, name)} is an option of MODE={owners}, not of {c.mode}"
    if c.compression not in ("none", *mine.get("compression", ())):
        allowed = ", ".join(("none", *mine["compression"]))
        yield f"MODE={c.mode} has no COMPRESSION={c.compression}: choose one of {allowed}"


def mode(c) -> Iterator[str]:
    most = MODES[c.mode].max_devices
    if most and c.num_devices > most:
        gpus = c.gpu_ids or c.num_devices
        yield f"MODE={c.mode} uses one device, but GPUS={gpus}: use GPUS=1, or MODE=dp, ddp or horovod"
    if c.gpu_ids and (ids := parse_gpu_ids(c.gpu_ids)) and c.device == "cpu":
        yield f"GPUS={c.gpu_ids} names GPUs, but DEVICE=cpu uses none: use GPUS={len(ids)}"
    if not c.out:
        yield "OUT= is empty: name a folder"


def data(c) -> Iterator[str]:
    if c.data is None:
        return
    kind, place = data_kind(c.data)
    if kind not in ("url", OWN) and kind not in data_sets.DATA_SETS:
        yield f"unknown DATA={c.data}: choose one of {', '.join(data_sets.choices())}"
    info = data_sets.info_of(c.data)
    if info.path and not place:
        yield f"DATA={c.data}: write DATA={kind}:PATH, the folder that contains train and val"
    if c.decode == "cuda" and (c.skip_bad or c.in_memory):
        yield "DECODE=cuda decodes batches again in each epoch: use DECODE=cpu, or leave SKIP_BAD and CACHE_IMAGES out"
    if kind in IN_MEMORY and place:
        yield f"DATA={c.data}: {kind} takes no path; its files are read from DATA_DIR"
    for name in filter(lambda name: is_given(c, name), ("evaluate", "target", "replicas")):
        if not info.validation:
            yield f"DATA={kind} has no validation set: leave {name.upper()} out, or use DATA=digits"
    for name in filter(lambda name: is_given(c, name), ("workers", "storage_ms", "augment")):
        if not info.loader:
            yield f"DATA={kind} comes from memory, without a loader: leave {name.upper()} out, or use DATA=digits"
    if info.train_examples and c.per_device_batch and c.global_batch > info.train_examples:
        most = info.train_examples // c.num_devices // c.accumulate
        fewer = f"BATCH={most}" if most else f"GPUS={max(1, info.train_examples // c.accumulate)}"
        yield (f"BATCH={c.per_device_batch} on {c.num_devices} devices needs {c.global_batch} images per step, but "
               f"DATA={kind} has {info.train_examples}: use {fewer} or less, or DATA=synthetic")  # fmt: skip


def model(c) -> Iterator[str]:
    name, text = c.model or "", workload(c) == "text"
    foreign = bool(own.named(name))
    if name.endswith(".py"):
        yield f"MODEL={name} does not name a function: write MODEL={name}:build for a function build in it"
    if c.width and c.heads and c.width % c.heads:
        yield f"EMBED_DIM={c.width} is not divisible by NUM_HEADS={c.heads}: use a multiple of it"
    if name == GPT and not text:
        yield f"MODEL=gpt needs text data, but DATA={c.data} is not text: use DATA=stdlib"
    if text and name not in ("", GPT) and not foreign:
        yield f"MODEL={name} needs images, but DATA={c.data} is text: use MODEL=gpt, or your own model as {own.FORM}"
    if c.pretrained == "torchvision" and (foreign or name.startswith((GPT, TIMM, own.KERAS))):
        yield f"PRETRAINED=torchvision has no weights for MODEL={name}: use a file"


def training(c) -> Iterator[str]:
    info = MODES[c.mode]
    if parse_schedule(c.schedule)[1] and is_given(c, "schedule_epochs"):
        yield f"SCHEDULE={c.schedule} already contains the epochs: leave …:EPOCHS out"
    for name in filter(lambda name: is_given(c, name), ("checkpoint_steps", "keep")):
        if c.checkpoint is False:
            yield f"CHECKPOINT=0 and {option_text(c, name)} exclude each other: leave one of them out"
    if c.keep is not None:
        parse_keep(c.keep)
    if c.target is not None and c.target > 1 and workload(c) == "images":
        yield f"TARGET={c.target:g}: write an accuracy between 0 and 1, as in 0.98"
    if c.norm == "sync" and not info.sync_norm:
        yield f"MODE={c.mode} has no NORM=sync: its replicas cannot communicate in a forward pass; use ddp or horovod"
    if c.compile and info.no_compile:
        yield f"MODE={c.mode} has no COMPILE=1: {info.no_compile}; use ddp or horovod"
    if not c.sync and c.norm == "sync":
        yield "INJECT=no-exchange and NORM=sync exclude each other (NORM=sync communicates): leave one of them out"
    if c.precision == "fp16" and c.compression == "powersgd":
        yield "COMPRESSION=powersgd would carry an fp16 overflow into every later step: use PRECISION=bf16"
    if c.precision == "fp16" and c.adasum:
        yield "ADASUM=1 reduces in optimizer.step(), but fp16 needs reduced gradients before it: use PRECISION=bf16"


def mistake(c) -> Iterator[str]:
    for requirement in mistakes.MISTAKES[c.mistake].requires if c.mistake != "none" else ():
        if not requirement.met(c):
            yield f"INJECT={c.mistake} needs {requirement.words}"


def elastic(c) -> Iterator[str]:
    words = f"MIN_DEVICES={c.elastic}"
    if not c.elastic:
        return
    if c.elastic > c.num_devices:
        yield f"{words} is larger than GPUS={c.num_devices}: use 1 to {c.num_devices}"
    if c.label.study or c.label.suite:
        yield f"{words} applies only to `bench run`, because an interrupted run cannot be compared: leave it out"
    if not c.epochs or c.checkpoint is False:
        yield f"{words} continues from checkpoints: give EPOCHS (and CHECKPOINT_STEPS), and leave CHECKPOINT=0 out"
    if c.launcher in ("spawn", "mpirun") or c.dist_url:
        yield f"{words} needs torchrun or horovodrun to restart ranks: leave LAUNCHER and DIST_URL out"


def launcher(c) -> Iterator[str]:
    allowed, url = MODES[c.mode].launchers, c.dist_url
    if c.launcher != "auto" and c.launcher not in allowed:
        yield f"LAUNCHER={c.launcher} cannot start MODE={c.mode}: use {' or '.join(allowed)}"
    if url is None:
        return
    if not re.fullmatch(r"tcp://[^:/]+:\d+|file:///.+", url):
        yield f"DIST_URL={url}: write tcp://HOST:PORT or file:///PATH"
    if url.startswith("tcp:") and not 0 < int(url.rpartition(":")[2]) < 65536:
        yield f"DIST_URL={url}: choose a port from 1 to 65535"
    if url.startswith("file:") and c.launcher not in ("auto", "spawn"):
        yield "a file:// DIST_URL needs LAUNCHER=spawn: torchrun has its own rendezvous"


def several_hosts(c) -> Iterator[str]:
    if not c.hosts:
        return
    machines, words = hosts.parse(c.hosts), f"HOSTS={c.hosts}"
    taken, first = hosts.share(machines, c.num_devices), machines[0]
    if c.remote is not None and "{host}" not in c.remote:
        yield f"REMOTE={c.remote} does not contain {{host}}: write {{host}} for the machine name, as in ssh {{host}}"
    try:
        shlex.split(c.remote or "")
    except ValueError as error:
        yield f"REMOTE={c.remote}: {error}"
    if MODES[c.mode].one_process and c.num_devices > first.slots:
        most = f"GPUS={first.slots} on {first.name}, the first"
        yield f"MODE={c.mode} runs one process on one machine: {words} has {most}; use MODE=ddp or horovod for more"
    if not taken:
        possible = ", ".join(map(str, hosts.possible(machines)))
        yield f"GPUS={c.num_devices} is not possible with {words}, because whole machines are used: use GPUS={possible}"
    if len(taken) > 1 and c.share_gpu:
        yield f"SHARE_GPU=1 puts all ranks on one GPU, but {words} names several machines: leave one of them out"
    if len(taken) > 1 and c.launcher == "spawn":
        yield f"LAUNCHER=spawn starts processes on one machine, but {words} names several: use torchrun"
    if len(taken) > 1 and (c.launcher == "mpirun" or c.adasum):
        what = "ADASUM=1, which needs MPI" if c.adasum else "LAUNCHER=mpirun"
        yield f"{what}: bench starts mpirun only on one machine; for {words} run mpirun -np 4 -H a:2,b:2 bench run"
    if c.dist_url and not c.dist_url.startswith(f"tcp://{first.name}:"):
        yield f"DIST_URL={c.dist_url}: with HOSTS the ranks meet on the first machine: use tcp://{first.name}:PORT"
