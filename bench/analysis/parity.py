"""The facts of the parity certificate: how each is read from a record, and between which records it may differ.

A record's own account of what happened counts, not the options: threads, workers, batches, weights and code are those
of the processes that ran.
"""

import hashlib

from bench.record import describe
from bench.record.view import Record

UNKNOWN = "not recorded"
DISAGREE = "ranks disagree"


def agreed(texts, mark: str = "; ") -> str:
    """The one text of all ranks, or what they disagree about."""
    found = sorted(set(texts))
    return found[0] if len(found) == 1 else f"{DISAGREE}: {mark.join(found)}"


def of_facts(*fields: str):
    """A reader of the facts that the ranks recorded; None where any did not."""

    def read(record: Record) -> str | None:
        seen = {tuple((part.facts or {}).get(f, UNKNOWN) for f in fields) for part in record.samples}
        texts = [", ".join(map(str, values)) for values in seen]
        return None if any(UNKNOWN in text for text in texts) else agreed(texts)

    return read


def of_config(*fields: str):
    return lambda record: " ".join(str(getattr(record.config, f)) for f in fields)


def global_batch(record: Record) -> int:
    """Images of a step, counted over the ranks."""
    return sum(len(part.first_indices) for part in record.samples)


def images_of_first_steps(record: Record) -> str:
    """The images of the first steps, as a set per step: the sum of the ranks' fingerprints, hashed."""
    ranks = [part.batch_fingerprints for part in record.samples]
    sets = " ".join(format(sum(step) % 2**48, "012x") for step in zip(*ranks, strict=False))
    return hashlib.sha256(sets.encode()).hexdigest()


def initial_weights(record: Record) -> str:
    """The weights that every rank started from: of all parameters, whole, also where a mode shards them."""
    hashes = {part.initial_weights_sha256 for part in record.samples}
    return hashes.pop() if len(hashes) == 1 else agreed((h[:8] for h in hashes), ", ")


def model(record: Record) -> str:
    config = record.config
    sizes = [each for each in (config.layers, config.width, config.heads, config.context) if each is not None]
    return " ".join(map(str, [config.model, *(sizes or [config.image_size])]))


def device_set(record: Record) -> str:
    devices = [device for part in record.samples for device in part.devices]
    found = {str(device.get("uuid") or device.get("name") or device["device"]) for device in devices}
    return f"{record.num_devices} × {record.config.device} ({', '.join(sorted(found))})"


def norm_images(record: Record) -> str | None:
    """What the normalising layers see at once: images, or what a batch counts, of one device."""
    kind = of_facts("norm")(record)
    if kind is None or "BatchNorm" not in kind:  # the others look at one image at a time
        return kind
    passes = global_batch(record) // record.config.accumulate
    seen = passes if record.config.norm == "sync" else passes // record.num_devices
    return f"{kind} over {seen} {record.workload.batched}"


def memory_format(record: Record) -> str:
    """How images and weights are laid out in memory. Older records, from before there was a choice, do not say."""
    return agreed((part.facts or {}).get("memory_format", "contiguous") for part in record.samples)


def optimizer(record: Record) -> str | None:
    settings = of_facts("optimizer", "momentum", "weight_decay")(record)
    fused = {bool((part.facts or {}).get("fused")) for part in record.samples}
    if settings is None or fused == {False}:
        return settings
    return f"{settings}, fused" if fused == {True} else f"{DISAGREE}: {settings}, with and without fused"


def revision(record: Record) -> str | None:
    """The code that ran: the hash of its source where it was recorded, else the git revision of an unchanged tree."""
    source, git = record.environment.get("source_sha256"), record.environment.get("git")
    if source:
        return source
    return None if not git or git["dirty"] else str(git["revision"])[:12]


def number_of_devices(record: Record) -> int:
    return record.num_devices


def number_of_machines(record: Record) -> int:
    return max(1, len(record.data.get("nodes", ())))


def mode(record: Record) -> tuple:
    return record.config.mode, record.config.sync


def program(record: Record) -> str:
    return record.program


def options(*names: str):
    return lambda record: tuple(getattr(record.config, name) for name in names)


FACTS = {
    "global batch": global_batch,
    "seed": of_config("seed"),
    "images of the first steps": images_of_first_steps,
    "model": model,
    "parameters": of_facts("parameters", "trained_parameters"),
    "initial weights": initial_weights,
    "optimizer": optimizer,
    "learning rate": of_facts("lr"),
    "schedule": of_config("schedule", "schedule_epochs", "schedule_factor", "lr_warmup_steps", "lr_warmup_epochs"),
    "clipping, guard": of_config("clip_norm", "loss_guard", "nesterov"),
    "augmentation": of_config("augment"),
    "memory format": memory_format,
    "compiler": lambda record: record.config.compile_mode or str(record.config.compile),
    "gradient": of_facts("gradient"),
    "gradient compression": of_facts("compression"),
    "precision": of_facts("parameter_dtype", "autocast", "tf32"),
    "extra work per step": of_facts("step_barrier", "item_sync"),
    "loader workers in total": lambda record: sum(part.loader_workers for part in record.samples),
    "storage": of_facts("storage_ms"),
    "threads in total": lambda record: sum(part.threads for part in record.samples),
    "waiting threads": lambda record: agreed(describe.wait_policies(record)),
    "warm-up and timed steps": lambda record: f"{record.config.warmup_steps} + {len(record.samples[0].step_time_s)}",
    "machine": lambda record: f"{record.machine['cpu_model']}, torch {record.versions.get('torch')}",
    "code": revision,
    "norm": of_facts("norm"),
    "images a norm layer sees": norm_images,
    "buffers": of_facts("buffers"),
    "device set": device_set,
}

# The hashes of the user's files and text.
SOURCES = {"source of the model": "model_source_sha256", "source of the data": "data_source_sha256",
           "text": "data_sha256"}  # fmt: skip

# The options whose effect the facts show. Data and image size are of one workload (comparison.require_comparable).
SHOWN = {
    "per_device_batch", "accumulate", "epochs", "seed", "data", "model", "image_size", "norm", "optimizer", "momentum",
    "nesterov", "weight_decay", "fused", "lr", "lr_batch", "schedule", "schedule_epochs", "schedule_factor",
    "lr_warmup_steps", "lr_warmup_epochs", "clip_norm", "loss_guard", "precision", "augment", "workers", "storage_ms",
    "warmup_steps", "timed_steps", "layers", "width", "heads", "context",
}  # fmt: skip

# Facts that differ because the modes do: why, and between which records they may not differ even so.
INHERENT = {
    "images a norm layer sees": ("batch norm is local: its statistics are of one device's share", number_of_devices),
    "buffers": ("dp keeps replica 0's, ddp and zero1 send rank 0's, horovod and fsdp leave each rank its own", mode),
    "device set": ("one device is not several", number_of_devices),
    "threads in total": ("of several machines one process has the cores of one", number_of_machines),
    "memory format": ("weights stay contiguous where Horovod sends, fsdp shards, or dp copies them to GPUs", mode),
}

WHY = {
    "threads in total": "a process cannot have less than one thread: equal with GPUS up to the number of cores",
    "gradient": "they do not compute the same update",
}
