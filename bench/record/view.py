"""One record, read-only: what reports, studies and notebooks read instead of keys in a dict. The types of its parts are
in bench/record/definition.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from bench.config.command_line import make_command
from bench.config.modes import MODES, ModeInfo
from bench.config.options import RunConfig, unchecked
from bench.config.sections import Label
from bench.config.workloads import WorkloadInfo
from bench.mistakes import MISTAKES
from bench.record.observed import observed_of
from bench.record.schema import check

if TYPE_CHECKING:  # it needs msgspec, which the list of commands does without
    from bench.record.definition import Node, Run, Sample


@dataclass(frozen=True, eq=False)
class Record(Mapping):
    """A record. data: as in its file, of this schema version. folder: where the file is. added: figures of the summary
    that are not in the file, which is too old to have them; they were computed from its samples. checked: ``data`` by
    its definition, where it has been checked already.

    ``record["summary"]`` is that part of the file; everything else here is a name for something in it.
    """

    FORM: ClassVar[str] = "Run"  # its name in the definition

    data: dict
    folder: str = ""
    added: frozenset[str] = frozenset()
    checked: Run | None = None

    @cached_property
    def form(self) -> Run:
        """The record by its definition."""
        return self.checked or check(self.data, self.folder or "record", self.FORM)

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
    def label(self) -> Label:
        """What it is in its suite."""
        return self.config.label

    @property
    def mode(self) -> ModeInfo:
        """The line of its mode in the table."""
        return MODES[self.config.mode]

    @property
    def looks(self) -> list[int]:
        """The rounds after which its suite was looked at, by the plan; none where the number of rounds was fixed."""
        return [int(number) for number in (self.label.looks or "").split(",") if number]

    @property
    def program(self) -> str:
        """What it is in its suite; its mode where nothing else was said."""
        return self.label.program or self.config.mode

    @cached_property
    def workload(self) -> WorkloadInfo:
        """What was trained: the unit of its throughput, and its metrics."""
        return self.form.workload

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
        import msgspec

        return [
            msgspec.structs.replace(node, name=node.name or f"node {number}", devices=node.devices or len(node.ranks),
                                    environment=node.environment or self.environment)
            for number, node in enumerate(self.form.nodes or ())
        ]  # fmt: skip

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
        return self.form.samples

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
