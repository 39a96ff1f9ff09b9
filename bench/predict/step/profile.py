"""The profile of one device's step, from a record with PROFILE=1: times of phases, and when each gradient is ready."""

import dataclasses
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from bench.config.options import names
from bench.config.sections import Model
from bench.errors import UserError
from bench.record import describe, packed
from bench.record.read import load
from bench.record.view import Record

ITEM = 4  # bytes of a float32
PHASES = ("forward", "backward", "optimizer")
# The options that determine the computation of a step.
SAME_STEP = (*names(Model), "data", "image_size", "context", "per_device_batch", "accumulate", "precision",
             "optimizer", "compile", "activation_checkpointing")  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """A parameter. block: the unit that FSDP shards, or "". needed_s: from the beginning of forward to its first use;
    ready_s: from the beginning of backward to its gradient."""

    name: str
    shape: tuple[int, ...]
    block: str
    needed_s: float
    ready_s: float

    @property
    def nbytes(self) -> int:
        return ITEM * math.prod(self.shape)


@dataclass(frozen=True)
class Profile:
    """The median step of one device, in seconds. source: the record. what: model, data, batch. device: "cpu" or "cuda".
    units: of the workload, per step. other_s: the step outside of the phases, with the data wait. factors: each timed
    step over the median. tensors: the trained parameters, in the model's order. buffers: (dtype, bytes)."""

    source: str
    what: str
    machine: str
    device: str
    unit: str
    units: int
    forward_s: float
    backward_s: float
    optimizer_s: float
    other_s: float
    factors: tuple[float, ...]
    tensors: tuple[Tensor, ...]
    buffers: tuple[tuple[str, int], ...]

    @property
    def step_s(self) -> float:
        return self.forward_s + self.backward_s + self.optimizer_s + self.other_s

    @property
    def mean_step_s(self) -> float:
        return self.step_s * statistics.fmean(self.factors)

    @property
    def throughput(self) -> float:
        """Units per second of one device."""
        return self.units / self.mean_step_s

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def slower(self, factor: float) -> "Profile":
        names = ("forward_s", "backward_s", "optimizer_s", "other_s")
        tensors = tuple(Tensor(each.name, each.shape, each.block, each.needed_s * factor, each.ready_s * factor)
                        for each in self.tensors)  # fmt: skip
        return dataclasses.replace(self, tensors=tensors, **{name: getattr(self, name) * factor for name in names})


def record_at(path: str) -> Record:
    """The record in a file or folder. Raises UserError."""
    place = Path(path).expanduser()
    place = place if packed.holds_file(place) else place / "record.json"
    if not packed.holds_file(place):
        raise UserError(f"{path} is not a record: name a record.json, or the folder of a run")
    return load(place)


def profile_of(record: Record, place) -> Profile:
    """The profile in a record. Raises UserError where it has none."""
    make = "make one with `make bench MODE=single PROFILE=1`"
    if not record.ok:
        raise UserError(f"{place} belongs to a run without timed steps (status {record.status}): {make}")
    if record.num_devices > 1:
        raise UserError(
            f"{place} belongs to a run on {record.num_devices} devices, but a run on 1 device is needed: {make}"
        )
    found = record.samples[0].profile
    if not found:
        raise UserError(f"{place} has no profile of one device (PROFILE=1, without COMPILE and ACCUMULATE): {make}")
    facts = record.samples[0].facts or {}
    if facts.get("parameters") != facts.get("trained_parameters"):
        raise UserError(f"{place} trains only some of the parameters: a forecast needs a model that trains all of "
                        "them")  # fmt: skip
    columns = [found["backward_s"]] + [row[name] for row in found["parameters"] for name in ("needed_s", "ready_s")]
    complete = {len(column) for column in columns} == {len(found["forward_s"])}
    timed = all(record.samples[0].phase_time_s.get(name) for name in PHASES)
    if not complete or not timed or min(*found["forward_s"], *found["backward_s"]) <= 0:
        raise UserError(f"{place}: its profile does not come from one run: {make}")
    if odd := {row["dtype"] for row in found["parameters"]} - {"float32"}:
        raise UserError(f"{place} has parameters in {', '.join(sorted(odd))}: only float32 can be forecast")
    return made(record, found)


def made(record: Record, found: dict) -> Profile:
    """Phases are medians of the timed steps; the steps with hooks give each moment as a share of its phase."""
    (sample,) = record.samples
    phases = {name: statistics.median(times) for name, times in sample.phase_time_s.items()}
    forward_s, backward_s, optimizer_s = (phases[name] for name in PHASES)
    step_s = statistics.median(sample.step_time_s)

    def at(moments: list[float], lengths: list[float], length: float) -> float:
        shares = [moment / whole for moment, whole in zip(moments, lengths, strict=True)]
        return min(1.0, statistics.median(shares)) * length

    tensors = [
        Tensor(row["name"], tuple(row["shape"]), row["block"], at(row["needed_s"], found["forward_s"], forward_s),
               at(row["ready_s"], found["backward_s"], backward_s))
        for row in found["parameters"]
    ]  # fmt: skip
    config, workload = record.config, record.workload
    return Profile(
        source=record.run_id,
        what=f"{describe.workload(record)}, {config.per_device_batch} {workload.batched} per device per step",
        machine=describe.machine_line(record),
        device=config.device,
        unit=workload.units,
        units=config.per_device_batch * workload.per_example,
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
        other_s=max(0.0, step_s - forward_s - backward_s - optimizer_s),
        factors=tuple(seconds / step_s for seconds in sorted(sample.step_time_s)),
        tensors=tuple(tensors),
        buffers=tuple((row["dtype"], row["bytes"]) for row in found["buffers"]),
    )
