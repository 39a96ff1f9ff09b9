"""The parity certificate: what was equal across the programs of a comparison, read from the records.

Nothing here looks at what was asked for where the record says what happened: threads and loader workers are counted
over the processes that ran, batches are known by the fingerprints of their images, weights by their hash. Three words:

- equal: the same in every record;
- inherent: differs because the modes ARE that difference (single's one device, batch norm over another number of
  images); it is named, and no verdict can be freed of it;
- differs: what makes a comparison unfair. Not recorded counts as differing: nobody knows.
"""

from dataclasses import dataclass

UNKNOWN = "not recorded"


@dataclass(frozen=True)
class Fact:
    """One line of the certificate. values: role -> what its records say. why: only for what is not equal."""

    name: str
    values: dict[str, str]
    status: str  # equal | inherent | differs | not recorded
    why: str


@dataclass(frozen=True)
class Certificate:
    """All lines, in the order of a reader's questions."""

    facts: list[Fact]

    @property
    def differences(self) -> list[Fact]:
        """What makes the comparison unfair."""
        return [fact for fact in self.facts if fact.status in ("differs", UNKNOWN)]

    @property
    def inherent(self) -> list[Fact]:
        """What differs because the modes differ."""
        return [fact for fact in self.facts if fact.status == "inherent"]

    @property
    def fair(self) -> bool:
        """Nothing differs that could be equal."""
        return not self.differences

    def sentence(self) -> str:
        """The certificate in one line."""
        if self.fair:
            return f"fair: {len(self.facts) - len(self.inherent)} facts equal; inherent: {names(self.inherent)}"
        return f"NOT A FAIR COMPARISON: {names(self.differences)}"


def names(facts: list[Fact]) -> str:
    """Their names with commas between."""
    return ", ".join(fact.name for fact in facts) or "none"


def certify(roles: dict[str, list[dict]], kind: str = "compare") -> Certificate:
    """Compare the programs of a suite. roles: role -> its good records, one a round. kind: what the suite studies."""
    facts = []
    for name, (read, inherent) in FACTS.items():
        found = {role: [read(record) for record in records] for role, records in roles.items()}
        facts.append(judge(name, found, inherent, *study_of(kind, name, roles)))
    return Certificate(facts)


def judge(name: str, found: dict[str, list], inherent: str | None, studied: str | None, groups: dict) -> Fact:
    """One line. found: role -> the value of each of its records; inherent: why it may differ by nature, or None;
    studied: why it may differ from group to group, or None; groups: role -> its group."""
    values = {role: said(seen) for role, seen in found.items()}
    everything = [value for seen in found.values() for value in seen]
    if any(value is None for value in everything):
        return Fact(name, values, UNKNOWN, "records of an older schema, or of another program")
    if all(value == everything[0] for value in everything):
        return Fact(name, values, "equal", "")
    if any(value != seen[0] for seen in found.values() for value in seen):
        return Fact(name, values, "differs", "it changed from round to round")
    if inherent:
        return Fact(name, values, "inherent", inherent)
    distinct = {(groups[role], seen[0]) for role, seen in found.items()}
    if studied and len(distinct) == len({group for group, _ in distinct}):
        return Fact(name, values, "inherent", studied)
    return Fact(name, values, "differs", "the programs did not get the same")


def study_of(kind: str, name: str, roles: dict[str, list[dict]]) -> tuple[str | None, dict]:
    """What a kind of suite varies on purpose: (why, the group of each role within which it must be equal)."""
    if kind in ("weak", "strong") and name in SCALED:
        return "it grows with the number of devices", {
            r: seen[0]["topology"]["num_devices"] for r, seen in roles.items()
        }
    if kind in STUDIED and name in STUDIED[kind]:
        return STUDIED[kind][name], {role: role for role in roles}
    return None, dict.fromkeys(roles)


def said(seen: list) -> str:
    """The values of a role as text: one when all its rounds agree."""
    texts = list(dict.fromkeys(UNKNOWN if value is None else shown(value) for value in seen))
    return texts[0] if len(texts) == 1 else f"{texts[0]} … {texts[-1]}"


def shown(value) -> str:
    """A value for a cell: hashes are cut to eight digits."""
    text = str(value)
    return text[:8] if len(text) == 64 else text


# --- how each fact is read from a record ------------------------------------------------------------------------


def of_facts(*fields: str):
    """A reader of the facts that the ranks recorded: one text when all ranks agree."""

    def read(record: dict) -> str | None:
        seen = {tuple(part.get("facts", {}).get(f, UNKNOWN) for f in fields) for part in record["samples"]}
        texts = sorted(", ".join(map(str, values)) for values in seen)
        return None if any(UNKNOWN in text for text in texts) else "; ".join(texts)

    return read


def of_config(*fields: str):
    """A reader of options that are settled before the processes start."""
    return lambda record: " ".join(str(record["config"].get(f)) for f in fields)


def images_of_first_steps(record: dict) -> str:
    """The images of the first steps, as a set a step: the sum of the ranks' fingerprints."""
    ranks = [part["batch_fingerprints"] for part in record["samples"]]
    return " ".join(format(sum(step) % 2**48, "012x") for step in zip(*ranks, strict=True))


def initial_weights(record: dict) -> str:
    """The weights that every rank started from; a word when the ranks differ."""
    hashes = sorted({part["initial_weights_sha256"] for part in record["samples"]})
    return hashes[0] if len(hashes) == 1 else f"{len(hashes)} different"


def threads(record: dict) -> int:
    """Compute threads over all processes."""
    return sum(part["threads"] for part in record["samples"])


def loader_workers(record: dict) -> int:
    """Loader processes over all training processes."""
    return sum(part["loader_workers"] for part in record["samples"])


def device_set(record: dict) -> str:
    """How many of which devices."""
    found = [
        device.get("uuid") or device.get("name") or device["device"]
        for p in record["samples"]
        for device in p["devices"]
    ]
    count = record["topology"]["num_devices"]
    return f"{count} × {record['config']['device']} ({', '.join(sorted(set(map(str, found))))})"


def norm_images(record: dict) -> str:
    """What the normalising layers see at once: images of one device."""
    kind = of_facts("norm")(record)
    if kind is None or kind == "none":
        return kind
    return f"{kind} over {record['config']['per_device_batch']} images"


def revision(record: dict) -> str | None:
    """The code's git revision, with a mark when it had been changed."""
    git = record["environment"].get("git")
    return git and f"{str(git['revision'])[:12]}{' with changes' if git['dirty'] else ''}"


def machine(record: dict) -> str:
    """Processor and the versions that compute."""
    environment = record["environment"]
    versions = environment["versions"]
    return f"{environment['machine']['cpu_model']}, torch {versions.get('torch')}"


SCALED = ("global batch", "images of the first steps", "threads in total")
STUDIED = {
    "knobs": {"gradient compression": "it is the setting under study"},
    "breakdown": {"gradient": "a run without exchange shows what the exchange costs"},
}

# name -> (reader, why it may differ by nature; None where it may not).
FACTS = {
    "global batch": (lambda record: record["topology"]["global_batch"], None),
    "images of the first steps": (images_of_first_steps, None),
    "model": (of_config("model", "image_size"), None),
    "parameters": (of_facts("parameters", "trained_parameters"), None),
    "initial weights": (initial_weights, None),
    "optimizer": (of_facts("optimizer", "momentum", "weight_decay"), None),
    "learning rate": (of_facts("lr"), None),
    "gradient": (of_facts("gradient"), None),
    "gradient compression": (of_facts("compression"), None),
    "precision": (of_facts("parameter_dtype", "autocast", "tf32"), None),
    "extra work a step": (of_facts("step_barrier", "item_sync"), None),
    "loader workers in total": (loader_workers, None),
    "storage": (of_facts("storage_ms"), None),
    "threads in total": (threads, None),
    "warm-up and timed steps": (of_config("warmup_steps", "timed_steps"), None),
    "machine": (machine, None),
    "code revision": (revision, None),
    "norm": (of_facts("norm"), None),
    "images a norm layer sees": (norm_images, "batch norm is local: its statistics are of one device's share"),
    "buffers": (of_facts("buffers"), "dp keeps replica 0's, ddp sends rank 0's, horovod leaves each rank its own"),
    "device set": (device_set, "single is one device, with the whole batch and all the threads"),
}  # fmt: skip
