"""The parity certificate: what was equal across the configurations of a comparison, read from the records.

- equal: the same in every record;
- inherent: differs because the modes ARE that difference (single's one device, batch norm over another number of
  images); it is named, and every verdict includes it;
- differs: makes a comparison unfair. Not recorded counts as differing.

The facts that a record observed count, not the options: threads, workers, batches, weights and code are those of the
processes that ran.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bench.config.options import UNSET, WORK
from bench.config.options import names as names_of_options
from bench.record import describe
from bench.record.describe import differing_nodes, where
from bench.record.view import Record

UNKNOWN = "not recorded"
DISAGREE = "ranks disagree"


def merge_texts(texts, mark: str = "; ") -> str:
    """The common text of all ranks, or what they disagree about."""
    found = sorted(set(texts))
    return found[0] if len(found) == 1 else f"{DISAGREE}: {mark.join(found)}"


def of_facts(*fields: str):
    """A reader of the facts that the ranks recorded; None if any did not."""

    def read(record: Record) -> str | None:
        seen = {tuple((part.facts or {}).get(f, UNKNOWN) for f in fields) for part in record.samples}
        texts = [label_values(fields, values) for values in seen]
        return None if any(UNKNOWN in text for text in texts) else merge_texts(texts)

    return read


def of_config(*fields: str):
    return lambda record: label_values(fields, [getattr(record.config, f) for f in fields])


def label_values(fields: Sequence[str], values: Sequence) -> str:
    """Values with their names; the value alone if there is only one.

    >>> label_values(["momentum", "weight_decay"], [0.9, 0.0]), label_values(["lr"], [0.05])
    ('momentum 0.9, weight decay 0.0', '0.05')
    """
    if len(fields) == 1:
        return str(values[0])
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in zip(fields, values, strict=True))


def global_batch(record: Record) -> int:
    """Images of a step, counted over the ranks."""
    return sum(len(part.first_indices) for part in record.samples)


def images_of_first_steps(record: Record) -> str:
    """The images of the first steps, as a set per step: the sum of the ranks' fingerprints, hashed."""
    ranks = [part.batch_fingerprints for part in record.samples]
    sets = " ".join(format(sum(step) % 2**48, "012x") for step in zip(*ranks, strict=False))
    return hashlib.sha256(sets.encode()).hexdigest()


def initial_weights(record: Record) -> str:
    """The initial weights of every rank: all parameters, complete even if a mode shards them."""
    hashes = {part.initial_weights_sha256 for part in record.samples}
    return hashes.pop() if len(hashes) == 1 else merge_texts((h[:8] for h in hashes), ", ")


def model(record: Record) -> str:
    config = record.config
    sizes = [each for each in (config.layers, config.width, config.heads, config.context) if each is not None]
    return " ".join(map(str, [config.model, *(sizes or [config.image_size])]))


def device_set(record: Record) -> str:
    devices = [device for part in record.samples for device in part.devices]
    found = {str(device.get("uuid") or device.get("name") or device["device"]) for device in devices}
    return f"{record.num_devices} × {record.config.device} ({', '.join(sorted(found))})"


def norm_images(record: Record) -> str | None:
    """The number of images (or other units of a batch) that a norm layer normalises together on one device."""
    kind = of_facts("norm")(record)
    if kind is None or "BatchNorm" not in kind:  # the others normalise one image at a time
        return kind
    passes = global_batch(record) // record.config.accumulate
    seen = passes if record.config.norm == "sync" else passes // record.num_devices
    return f"{kind} over {seen} {record.workload.batched}"


def memory_format(record: Record) -> str:
    """How images and weights are laid out in memory. Records older than this option do not contain it."""
    return merge_texts((part.facts or {}).get("memory_format", "contiguous") for part in record.samples)


def activation_checkpointing(record: Record) -> str:
    """Records older than this option had none."""
    blocks = ((part.facts or {}).get("recomputed_blocks") for part in record.samples)
    return merge_texts(f"{count} blocks" if count else "none" for count in blocks)


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


def program(record: Record) -> str:
    return record.program


def options(*names: str):
    return lambda record: tuple(getattr(record.config, name) for name in names)


of_mode = options("mode", "sync")


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
    "gradient clipping, loss guard": of_config("clip_norm", "loss_guard", "nesterov"),
    "augmentation": of_config("augment"),
    "memory format": memory_format,
    "compiler": lambda record: record.config.compile_mode or str(record.config.compile),
    "activation checkpointing": activation_checkpointing,
    "gradient": of_facts("gradient"),
    "gradient compression": of_facts("compression"),
    "precision": of_facts("parameter_dtype", "autocast", "tf32"),
    "extra work per step": of_facts("step_barrier", "item_sync"),
    "loader workers in total": lambda record: sum(part.loader_workers for part in record.samples),
    "storage": of_facts("storage_ms"),
    "threads in total": lambda record: sum(part.threads for part in record.samples),
    "OpenMP wait policy": lambda record: merge_texts(describe.wait_policies(record)),
    "warm-up and timed steps": lambda record: f"{record.config.warmup_steps} + {len(record.samples[0].step_time_s)}",
    "machine": lambda record: f"{record.machine['cpu_model']}, torch {record.versions.get('torch')}",
    "code": revision,
    "norm": of_facts("norm"),
    "images per norm layer": norm_images,
    "buffers": of_facts("buffers"),
    "device set": device_set,
}

# The hashes of the user's files and text.
SOURCES = {"source of the model": "model_source_sha256", "source of the data": "data_source_sha256",
           "text": "data_sha256"}  # fmt: skip

# Options whose effect the facts show. Data and image size belong to one workload (``comparison.require_comparable``).
SHOWN = {
    "per_device_batch", "accumulate", "epochs", "seed", "data", "model", "image_size", "norm", "optimizer", "momentum",
    "nesterov", "weight_decay", "fused", "lr", "lr_batch", "schedule", "schedule_epochs", "schedule_factor",
    "lr_warmup_steps", "lr_warmup_epochs", "clip_norm", "loss_guard", "precision", "augment", "workers", "storage_ms",
    "warmup_steps", "timed_steps", "layers", "width", "heads", "context",
}  # fmt: skip

# Facts that differ because the modes do: why, and between which records they must still be equal.
INHERENT = {
    "images per norm layer": ("batch norm is local: its statistics come from one device's share", number_of_devices),
    "buffers": (
        "dp keeps replica 0's, ddp and zero1 broadcast rank 0's, horovod and fsdp keep each rank's own",
        of_mode,
    ),
    "device set": ("single has one device, other modes several", number_of_devices),
    "threads in total": (
        "one process uses the cores of one machine only",
        lambda record: len(record.data.get("nodes", ())) or 1,
    ),
    "memory format": ("weights stay contiguous if Horovod sends, fsdp shards, or dp copies them to GPUs", of_mode),
}

WHY = {
    "threads in total": "a process cannot have less than one thread: equal with GPUS up to the number of cores",
    "gradient": "they do not compute the same update",
}


# --- the certificate ------------------------------------------------------------------------------------------------

Programs = dict[str, list[Record]]  # label -> its good records, one per round


@dataclass(frozen=True)
class Rules:
    """Facts that a study varies on purpose, so that they are not unfair."""

    # fact -> why it may differ, and a function of a record: records with the same value must still be equal
    varies: dict[str, tuple[str, Callable]] = field(default_factory=dict)
    by_round: tuple[str, ...] = ()  # facts that change every round, and are compared round by round
    ranks_apart: tuple[str, ...] = ()  # facts that may differ between the ranks of one run
    options: tuple[str, ...] = ()  # options that define the work, in which the programs may differ
    mistakes: bool = False  # the injected mistake is the subject of the study


NOTHING_VARIES = Rules()


@dataclass(frozen=True)
class Fact:
    name: str
    values: dict[str, str]  # program -> the values in its records
    status: str  # equal | inherent | differs | not recorded
    why: str = ""  # only for facts that are not equal


@dataclass(frozen=True)
class Certificate:
    facts: list[Fact]

    @property
    def differences(self) -> list[Fact]:
        return [fact for fact in self.facts if fact.status in ("differs", UNKNOWN)]

    @property
    def inherent(self) -> list[Fact]:
        return [fact for fact in self.facts if fact.status == "inherent"]

    @property
    def fair(self) -> bool:
        return not self.differences

    def sentence(self) -> str:
        if self.fair:
            equal = len(self.facts) - len(self.inherent)
            return f"fair: {equal} facts are equal; differences inherent to the modes: {names(self.inherent)}"
        return f"NOT A FAIR COMPARISON: {names(self.differences)}"


def names(facts: list[Fact]) -> str:
    return ", ".join(fact.name for fact in facts) or "none"


def certify(programs: Programs, rules: Rules = NOTHING_VARIES) -> Certificate:
    batched = next(record for records in programs.values() for record in records).workload.batched
    facts = []
    for name, read in FACTS.items():
        allowed = rules.varies.get(name) or INHERENT.get(name)
        fact = judge(name, programs, read, allowed, name in rules.by_round, name in rules.ranks_apart)
        facts.append(replace(fact, name=name.replace("images", batched)))
    facts += [*passes(programs, rules), *searched_batches(programs), *several_machines(programs)]
    facts += [*interruptions(programs), *hash_sources(programs, rules)]
    return Certificate([*facts, other_options(programs, rules), injected_mistakes(programs, rules)])


def judge(
    name: str, programs: Programs, read: Callable, allowed: tuple | None = None, by_round: bool = False,
    ranks_apart: bool = False,
) -> Fact:  # fmt: skip
    """One line, from the value that ``read`` gives for each record. The rest: as in ``Rules``."""
    found = {label: [(read(record), record) for record in records] for label, records in programs.items()}
    values = {label: value_text([value for value, _ in seen]) for label, seen in found.items()}
    everything = [pair for seen in found.values() for pair in seen]
    distinct = {value for value, _ in everything}
    if None in distinct:
        return Fact(name, values, UNKNOWN, "records of an older schema, or of modified code")
    if DISAGREE in "".join(map(str, distinct)) and not ranks_apart:
        return Fact(name, values, "differs", "the ranks of one run differ")
    if len(distinct) == 1:
        return Fact(name, values, "equal")
    why, group = allowed or ("", lambda record: None)
    if by_round:
        rounds = {}
        for value, record in everything:
            rounds.setdefault(record.label.round, []).append((value, record))
        if not all(same_in_groups(pairs, group) for pairs in rounds.values()):
            return Fact(name, values, "differs", "within one round the configurations had different values")
        equal = all(len({value for value, _ in pairs}) == 1 for pairs in rounds.values())
        return Fact(name, values, "equal") if equal else Fact(name, values, "inherent", why)
    if any(value != seen[0][0] for seen in found.values() for value, _ in seen):
        return Fact(name, values, "differs", "it changed between rounds")
    if allowed and same_in_groups(everything, group):
        return Fact(name, values, "inherent", why)
    return Fact(name, values, "differs", WHY.get(name, "the configurations had different values"))


def same_in_groups(pairs: list[tuple], group: Callable) -> bool:
    return len({(group(record), value) for value, record in pairs}) == len({group(record) for _, record in pairs})


def value_text(seen: list) -> str:
    """The values of a program as text: one if all its rounds agree. Hashes are cut to eight digits."""
    texts = [UNKNOWN if value is None else str(value) for value in seen]
    texts = list(dict.fromkeys(text[:8] if len(text) == 64 else text for text in texts))
    return texts[0] if len(texts) == 1 else f"{texts[0]} … {texts[-1]}"


def passes(programs: Programs, rules: Rules) -> list[Fact]:
    why = "one device accumulates the global batch over several passes if its memory is too small"
    allowed = rules.varies.get("passes of a step", (why, number_of_devices))
    fact = judge("passes of a step", programs, lambda record: record.config.accumulate, allowed)
    return [] if fact.status == "equal" else [fact]


def searched_batches(programs: Programs) -> list[Fact]:
    """With BATCH=max: the short runs by which the batch was found, the same ones for all programs."""

    def tries(record: Record) -> str:
        found = record.data.get("batch_search", ())
        return ", ".join(f"{each['program']} {each['batch']} {'fits' * each['fitted'] or 'does not'}" for each in found)

    fact = judge("tries of BATCH=max", programs, tries)
    return [fact] if any(fact.values.values()) else []


def hash_sources(programs: Programs, rules: Rules) -> list[Fact]:
    """Hashes of the user's own code or text, if any was trained."""
    return [
        judge(name, programs, of_facts(key), rules.varies.get(name))
        for name, key in SOURCES.items()
        if any(of_facts(key)(record) for records in programs.values() for record in records)
    ]


def several_machines(programs: Programs) -> list[Fact]:
    """For several machines, or a named network: are the machines of a run equal, and those of all runs?"""
    records = [record for found in programs.values() for record in found]
    if not any(record.several_machines or record.network for record in records):
        return []
    apart = {label: dict.fromkeys(s for r in found for s in differing_nodes(r)) for label, found in programs.items()}
    alike = {label: "; ".join(sentences) or "alike" for label, sentences in apart.items()}
    networks = {
        label: value_text([record.network or "not named" for record in found]) for label, found in programs.items()
    }
    places = {
        label: value_text([where(record) or "one machine" for record in found]) for label, found in programs.items()
    }
    of_size = {(record.num_devices, where(record)) for record in records}
    placed = ("differs", "the same number of devices was on different machines")
    if len(set(places.values())) == 1:
        placed = ("equal",)
    elif len(of_size) == len({record.num_devices for record in records}):
        placed = ("inherent", "one device is on one machine")
    one_network = len({record.network for record in records}) == 1
    return [
        Fact("machines of a run", alike, *(("differs", "they differ") if any(apart.values()) else ("equal",))),
        Fact("network", networks, *(("equal",) if one_network else ("differs", "values of different networks"))),
        Fact("placement", places, *placed),
    ]


def interruptions(programs: Programs) -> list[Fact]:
    """Interrupted runs with MIN_DEVICES: their remaining times cannot be compared."""
    counts = {label: sum(len(record.interruptions) for record in found) for label, found in programs.items()}
    values = {label: str(count) for label, count in counts.items()}
    return [Fact("interruptions", values, "differs", "ranks were lost while it ran")] if any(counts.values()) else []


def other_options(programs: Programs, rules: Rules) -> Fact:
    """Options of the work that no fact covers; a new option is included without a line here."""
    rest = [name for name in names_of_options(*WORK) if name not in SHOWN and name not in rules.options]

    def given(record: Record) -> str:
        return " ".join(f"{n}={v}" for n in rest if (v := getattr(record.config, n)) != UNSET[n]) or "defaults"

    found = {label: list(map(given, records)) for label, records in programs.items()}
    values = {label: value_text(texts) for label, texts in found.items()}
    if len({text for texts in found.values() for text in texts}) == 1:
        return Fact("other options", values, "equal")
    return Fact("other options", values, "differs", "the configurations have different options")


def injected_mistakes(programs: Programs, rules: Rules) -> Fact:
    """MISTAKE in any program makes a comparison unfair, even if all have it; except in a study of mistakes."""
    values = {label: value_text([record.config.mistake for record in records]) for label, records in programs.items()}
    name = "injected mistakes"
    if set(values.values()) <= {"none"}:
        return Fact(name, values, "equal")
    if rules.mistakes:
        return Fact(name, values, "inherent", "it is the mistake under study")
    return Fact(name, values, "differs", "a configuration with a mistake is not compared")
