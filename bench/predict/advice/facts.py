"""The inputs of the advice: measured rounds of each mode, a profile, a link, a price."""

from dataclasses import dataclass, field

from bench.config.modes import MODES, ModeInfo
from bench.config.options import RunConfig
from bench.predict.step.engines import ENGINES
from bench.predict.step.fit import Fit
from bench.predict.step.link import Link
from bench.predict.step.profile import Profile

# The parts of a step.
DATA_WAIT, EXPOSED, IMBALANCE = "data wait", "exposed communication", "imbalance between ranks"
COMPUTATION, REST = "computation", "computation, communication and the rest"  # REST where they are not known apart
HOUR = 3600  # seconds
LEAST = 0.01  # a part with less of the step is not worth a trial
FP16 = {"compression": "fp16"}
ALONE = next(mode for mode, info in MODES.items() if info.max_devices == 1)


@dataclass(frozen=True, eq=False)
class Way:
    """A way to train, as measured. throughputs: units per second in each round. parts: milliseconds of the step by
    part, in each round; empty where they are unknown."""

    label: str
    config: RunConfig
    throughputs: list[float]
    parts: dict[str, list[float]] = field(default_factory=dict)

    @property
    def info(self) -> ModeInfo:
        return MODES[self.config.mode]

    @property
    def uses_one_device(self) -> bool:
        return self.info.max_devices == 1

    @property
    def rank(self) -> tuple:
        """A sort key, the simplest first: one device; one process per device without another package; with one;
        compressed gradients; one process on several devices, which PyTorch advises against."""
        info, compressed = self.info, self.config.compression != "none"
        place = list(MODES).index(self.config.mode)
        several = not self.uses_one_device
        return several, several and info.one_process, compressed, bool(info.needs), place, self.label

    @property
    def paid(self) -> int:
        """Number of paid devices: GPUs; on CPUs machines, whose cores the workers share."""
        return self.config.num_devices if self.config.device == "cuda" else max(1, len(self.config.machines))

    @property
    def can_halve(self) -> bool:
        """Whether it can send its gradients as float16, and does not."""
        return FP16["compression"] in (self.info.knobs.get("compression") or ()) and self.config.compression == "none"

    @property
    def steps_ms(self) -> list[float]:
        return [sum(values) for values in zip(*self.parts.values(), strict=True)]

    def share(self, part: str) -> list[float]:
        return [value / step for value, step in zip(self.parts[part], self.steps_ms, strict=True)]


@dataclass(frozen=True)
class Facts:
    """
    ways: measured in the same rounds. looks: number of interim analyses. disturbed: whether any run was. withheld: why
    no recommendation is given, or "". what, source: the workload; where and when it was measured. units: of throughput;
    batched: of a batch. unfair: the certificate's difference.
    profile, link: for a forecast; fits: mode -> the forecast fitted to its measured runs over this link. own_link:
    measured between the devices of ``ways``. nodes: of the forecast cluster, with one device each. batches: label ->
    largest batch per device; batches_said: their provenance, or why there are none. price: of a device-hour. examples:
    per epoch; per_example: units. said: notes on the measurements. unknown: what is not available, and why.
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
    fits: dict[str, Fit] = field(default_factory=dict)
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
    def forecast_modes(self) -> list[str]:
        """All that can be forecast; if some are fitted only these, because without a fit a mode looks faster."""
        return [*(self.fits or ENGINES)]

    @property
    def per_epoch(self) -> int | None:
        """Units; None where the number of examples is unknown."""
        return self.examples and self.examples * self.per_example
