"""What advice is made from: measured rounds of each mode, and what a forecast needs."""

from dataclasses import dataclass, field

from bench.config.modes import MODES, ModeInfo
from bench.config.options import RunConfig
from bench.predict.step.link import Link
from bench.predict.step.profile import Profile

# What a step is for; the parts of one program add up to its step.
DATA_WAIT, EXPOSED, IMBALANCE = "data wait", "exposed communication", "imbalance between ranks"
COMPUTATION, REST = "computation", "computation, communication and the rest"  # the second where that is not known apart
SECONDS = 3600  # in an hour, in which a device is paid
ALONE = next(mode for mode, info in MODES.items() if info.max_devices == 1)


@dataclass(frozen=True, eq=False)
class Way:
    """A program that trains, as it was measured. throughputs: units per second, one of each round. parts: milliseconds
    of a step in each round by what they are for; empty where they are not known."""

    label: str
    config: RunConfig
    throughputs: list[float]
    parts: dict[str, list[float]] = field(default_factory=dict)

    @property
    def info(self) -> ModeInfo:
        """The line of its mode in the table."""
        return MODES[self.config.mode]

    @property
    def alone(self) -> bool:
        """Whether it is one process on one device."""
        return self.info.max_devices == 1

    @property
    def rank(self) -> tuple:
        """A key by which the simpler of two comes first: one device; one process per device, with what PyTorch alone
        has; what needs a package more; gradients that are rounded on their way; one process on several devices, from
        which PyTorch advises against."""
        info, compressed = self.info, self.config.compression != "none"
        place = list(MODES).index(self.config.mode)
        return not self.alone, not self.alone and info.one_process, compressed, bool(info.needs), place, self.label

    @property
    def paid(self) -> int:
        """How many devices its hours cost: GPUs; on CPUs machines, whose cores the workers share."""
        return self.config.num_devices if self.config.device == "cuda" else max(1, len(self.config.machines))

    @property
    def steps_ms(self) -> list[float]:
        """The step in each round."""
        return [sum(values) for values in zip(*self.parts.values(), strict=True)]

    def share(self, part: str) -> list[float]:
        """What a part has of the step, in each round."""
        return [value / step for value, step in zip(self.parts[part], self.steps_ms, strict=True)]


@dataclass(frozen=True)
class Facts:
    """All that is known.

    ways: the programs that were measured in the same rounds; looks: how often their verdicts were looked at; disturbed:
    whether any of their runs was; withheld: why nothing is recommended from them, "" where something is. what,
    source: the workload, and where and when it was measured. units: of throughput; batched: of a batch. unfair: what
    the certificate says where something differed.
    profile, link: for a forecast. own_link: the one that was measured between the devices of ``ways``. nodes: of a
    cluster that is not there, one device each. batches: label -> the largest batch per device; batches_said: what that
    rests on, or why there is none. price: of a device-hour. examples: in an epoch; per_example: units in one. said:
    what must be known of the measurements. unknown: what could not be had, and why.
    """

    ways: tuple[Way, ...] = ()
    looks: int = 1
    disturbed: bool = False
    withheld: str = ""
    what: str = ""
    source: str = ""
    units: str = "images"
    batched: str = "images"
    unfair: str = ""
    profile: Profile | None = None
    link: Link | None = None
    own_link: Link | None = None
    nodes: int | None = None
    batches: dict[str, int] = field(default_factory=dict)
    batches_said: tuple[str, ...] = ()
    price: float | None = None
    examples: int | None = None
    per_example: int = 1
    said: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def per_epoch(self) -> int | None:
        """Units in an epoch; None where its examples are not known."""
        return self.examples and self.examples * self.per_example
