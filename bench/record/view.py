"""One record, typed and read-only: what reports, studies and notebooks read instead of keys in a dict."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from bench.config.command_line import make_command
from bench.config.modes import MODES, ModeInfo
from bench.config.options import RunConfig, unchecked
from bench.config.workloads import Metric, WorkloadInfo
from bench.mistakes import MISTAKES
from bench.record.observed import observed_of


@dataclass(frozen=True)
class Sample:
    """What one rank measured. Times in seconds, one per timed step. What an old record lacks is empty or None."""

    rank: int
    threads: int
    loader_workers: int
    step_time_s: list[float]
    data_wait_s: list[float]
    # Seconds since 1970, steady: worker_started, joined, data_ready, first_timed_step, last_timed_step.
    moments: dict[str, float]
    first_indices: list[int]  # the examples of the first step
    batch_fingerprints: list[int]
    devices: list[dict]  # memory over time and its peaks, one per device of this process
    initial_weights_sha256: str | None = None
    final_weights_sha256: str | None = None
    phase_time_s: dict[str, list[float]] = field(default_factory=dict)
    facts: dict | None = None  # what the run did, read from its live objects
    timeline: dict | None = None  # of a profiled step
    profile: dict | None = None  # of one device: when each parameter is needed, and its gradient ready
    replicas: dict | None = None  # of rank 0: distances between the replicas, accuracy of each
    lab: dict = field(default_factory=dict)  # what a mistake noted
    node: int = 0  # the number of its machine among the record's nodes
    load: dict | None = None  # CPU of this rank and of its machine during the timed steps (bench/measure/load.py)


@dataclass(frozen=True)
class Node:
    """One machine of a run. clock_offset_s: its clock less that of rank 0's machine, good to clock_uncertainty_s; no
    figure rests on it. What is not known is None."""

    name: str
    ranks: list[int]
    devices: int
    environment: dict
    interface: str | None = None
    link_speed_mbit: float | None = None
    clock_offset_s: float | None = None
    clock_uncertainty_s: float | None = None


FIELDS = tuple(Sample.__dataclass_fields__)


def workload_in(data: dict) -> WorkloadInfo:
    """The ``workload`` of a record's file."""
    found = data["workload"]
    return WorkloadInfo(**found | {"metrics": tuple(Metric(**metric) for metric in found["metrics"])})


@dataclass(frozen=True, eq=False)
class Record(Mapping):
    """A record. data: as in its file, of this schema version. folder: where the file is. added: figures of the summary
    that are not in the file, which is too old to have them; they were computed from its samples.

    ``record["summary"]`` is that part of the file; everything else here is a name for something in it.
    """

    data: dict
    folder: str = ""
    added: frozenset[str] = frozenset()

    def __getitem__(self, key: str):
        return self.data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    # --- which run it is ------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        return self.data["run_id"]

    @property
    def status(self) -> str:
        """ "ok", "evaluated" (it only validated) or "failed"."""
        return self.data["status"]

    @property
    def ok(self) -> bool:
        """Whether it measured what it was to measure."""
        return self.status == "ok"

    @property
    def started_at(self) -> str:
        """Day and time in UTC, as in ISO 8601."""
        return self.data["started_at"]

    @property
    def command(self) -> str:
        """The make command that repeats it, made from its options: what the file says may be anybody's text."""
        return make_command(self.config)

    @cached_property
    def config(self) -> RunConfig:
        """Its options, resolved."""
        return unchecked(self.data["config"])

    @property
    def mode(self) -> ModeInfo:
        """The line of its mode in the table."""
        return MODES[self.config.mode]

    @property
    def looks(self) -> list[int]:
        """The rounds after which its suite was looked at, by the plan; none where the number of rounds was fixed."""
        return [int(number) for number in (self.config.looks or "").split(",") if number]

    @property
    def program(self) -> str:
        """What it is in its suite; its mode where nothing else was said."""
        return self.config.program or self.config.mode

    @cached_property
    def workload(self) -> WorkloadInfo:
        """What was trained: the unit of its throughput, and its metrics."""
        return workload_in(self.data)

    # --- where it ran ---------------------------------------------------------------------------------------------

    @property
    def environment(self) -> dict:
        """The machine, or the first of several: hardware, driver, versions, revision, variables."""
        return self.data["environment"]

    @property
    def machine(self) -> dict:
        """Processor and memory."""
        return self.environment.get("machine") or {}

    @property
    def versions(self) -> dict:
        """Package -> version."""
        return self.environment.get("versions") or {}

    @property
    def gpus(self) -> list[dict]:
        """The GPUs of all its machines."""
        environments = [node.environment for node in self.nodes] or [self.environment]
        return [gpu for environment in environments for gpu in environment.get("devices") or []]

    @cached_property
    def nodes(self) -> list[Node]:
        """Its machines, rank 0's first; none of a run that failed or only validated."""
        found = []
        for number, node in enumerate(self.data.get("nodes", ())):
            known = {"name": f"node {number}", "devices": len(node["ranks"]), "environment": self.environment} | node
            found.append(Node(**known))
        return found

    @property
    def several_machines(self) -> bool:
        """Whether it ran on more than one machine."""
        return len(self.nodes) > 1

    @property
    def layout(self) -> str:
        """On how many machines how many devices were; "" on one machine."""
        counts = dict.fromkeys(node.devices for node in self.nodes)
        each = " and ".join(map(str, counts))
        words = "device" if list(counts) == [1] else "devices"
        return f"{len(self.nodes)} nodes × {each} {words}" if self.several_machines else ""

    @property
    def network(self) -> str | None:
        """What is said of its network wherever its figures are; None of an ordinary one."""
        return self.data.get("network", {}).get("label")

    @property
    def on_gpu(self) -> bool:
        return self.config.device == "cuda"

    @property
    def topology(self) -> dict:
        """World size, devices, threads, loader workers, global batch, notes. Empty for a failed run."""
        return self.data["topology"]

    @property
    def world_size(self) -> int:
        """Processes that trained."""
        return self.topology["world_size"]

    @property
    def num_devices(self) -> int:
        """Devices over all processes."""
        return self.topology["num_devices"]

    @property
    def global_batch(self) -> int:
        """Examples per step over all devices."""
        return self.topology["global_batch"]

    @property
    def threads_total(self) -> int | None:
        """Compute threads over all processes; None where they were not recorded."""
        return self.topology.get("threads_total")

    @property
    def notes(self) -> list[str]:
        """What must be known of the run."""
        return self.topology.get("notes", [])

    # --- what was measured ----------------------------------------------------------------------------------------

    @cached_property
    def samples(self) -> list[Sample]:
        """One per rank; none of a failed run."""
        return [Sample(**{k: part[k] for k in FIELDS if k in part}) for part in self.data["samples"]]

    @property
    def throughput(self) -> float | None:
        """Units of the workload per second, over all devices; None of a run that timed no step."""
        return self.data["summary"].get("throughput_per_s")

    @property
    def median_throughput(self) -> float:
        """Units of the workload per second, were every timed step the median one: one long step does not move it."""
        return self.data["summary"]["median_throughput_per_s"]

    @property
    def step_time(self) -> dict[str, float]:
        """Seconds of a step, its slowest rank's: n, mean, median, p5, p95."""
        return self.data["summary"]["step_time_s"]

    @property
    def peak_memory(self) -> list[dict]:
        """GiB by source, one dict per device, with its rank."""
        return self.data["summary"].get("peak_memory_gib", [])

    @property
    def accuracy(self) -> dict:
        """What was trained or validated; empty otherwise."""
        return self.data.get("accuracy", {})

    @property
    def epochs(self) -> list[dict]:
        """One row per epoch; none of a run that failed or trained none."""
        return self.accuracy.get("epochs", [])

    @property
    def top1(self) -> float | None:
        """The workload's first metric after the last epoch; None where nothing was validated."""
        return self.accuracy.get(self.workload.metrics[0].key)

    @cached_property
    def observed(self) -> dict:
        """What is known of the run, for the detectors."""
        return observed_of(self.data)

    # --- what it has survived ---------------------------------------------------------------------------------------

    @property
    def interruptions(self) -> list[dict]:
        """Of a run with ELASTIC: when, who, kind, seconds lost, steps repeated, devices before and after."""
        return self.data.get("elastic", {}).get("interruptions", [])

    # --- how it failed --------------------------------------------------------------------------------------------

    @property
    def failure(self) -> dict | None:
        """rank, kind, message, traceback; None of a run that ended well."""
        return self.data.get("failure")

    @property
    def hung(self) -> bool:
        """Whether it made no progress until it was ended."""
        return self.status == "failed" and self.failure["kind"] == "hung"

    @property
    def failed_on_purpose(self) -> bool:
        """Whether it hung by a mistake that was made to hang it: a result, and no accident."""
        mistake = MISTAKES.get(self.config.mistake)
        return bool(mistake and mistake.lab.hangs and self.hung)
