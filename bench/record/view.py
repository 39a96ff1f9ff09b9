"""One record, read-only: what reports, studies and notebooks read. Types: bench/record/definition.py."""

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

NEEDED = object()


def part(*names: str, default=NEEDED) -> property:
    """A property that reads ``record[names[0]][names[1]]…``. Without a default a missing name raises KeyError."""

    def read(record: Record):
        value = record.data
        for name in names:
            if name not in value and default is not NEEDED:
                return default
            value = value[name]
        return value

    return property(read)


@dataclass(frozen=True, eq=False)
class Record(Mapping):
    """A record. data: as in its file, of this schema version. folder: where the file is. added: metrics of the summary
    that the file is too old to contain; they were computed from its samples. checked: ``data`` by its definition, if
    it has been checked already.

    ``record["summary"]`` is that part of the file; everything else here is a name for something in it.
    """

    FORM: ClassVar[str] = "Run"  # its name in the definition

    data: dict
    folder: str = ""
    added: frozenset[str] = frozenset()
    checked: Run | None = None

    @cached_property
    def form(self) -> Run:
        return self.checked or check(self.data, self.folder or "record", self.FORM)

    def __getitem__(self, key: str):
        return self.data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    run_id = part("run_id")
    status = part("status")  # "ok", "evaluated" (it only validated) or "failed"
    started_at = part("started_at")  # UTC, as in ISO 8601

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def command(self) -> str:
        """The make command that repeats the run, made from its options: the text in the file is not trusted."""
        return make_command(self.config)

    @cached_property
    def config(self) -> RunConfig:
        return unchecked(self.data["config"])

    @property
    def label(self) -> Label:
        return self.config.label

    @property
    def mode(self) -> ModeInfo:
        return MODES[self.config.mode]

    @property
    def looks(self) -> list[int]:
        """The rounds after which its suite had an interim analysis, by the plan; empty for a fixed number of rounds."""
        return [int(number) for number in (self.label.looks or "").split(",") if number]

    @property
    def program(self) -> str:
        """Its arm in its suite; by default its mode."""
        return self.label.program or self.config.mode

    @property
    def workload(self) -> WorkloadInfo:
        return self.form.workload

    environment = part("environment")  # of the machine, or of the first of several
    network = part("network", "label", default=None)  # shown wherever its metrics are; None for an ordinary network
    topology = part("topology")  # world size, devices, threads, loader workers, global batch, notes; empty if it failed
    world_size = part("topology", "world_size")
    num_devices = part("topology", "num_devices")  # over all processes
    global_batch = part("topology", "global_batch")
    threads_total = part("topology", "threads_total", default=None)
    notes = part("topology", "notes", default=[])

    @property
    def machine(self) -> dict:
        return self.environment.get("machine") or {}

    @property
    def versions(self) -> dict:
        return self.environment.get("versions") or {}

    @property
    def gpus(self) -> list[dict]:
        environments = [node.environment for node in self.nodes] or [self.environment]
        return [gpu for environment in environments for gpu in environment.get("devices") or []]

    @cached_property
    def nodes(self) -> list[Node]:
        """Its machines, rank 0's first; empty for a run that failed or only validated."""
        import msgspec

        return [
            msgspec.structs.replace(node, name=node.name or f"node {number}", devices=node.devices or len(node.ranks),
                                    environment=node.environment or self.environment)
            for number, node in enumerate(self.form.nodes or ())
        ]  # fmt: skip

    @property
    def several_machines(self) -> bool:
        return len(self.nodes) > 1

    @property
    def layout(self) -> str:
        """As in "2 nodes × 4 devices"; "" for one machine."""
        counts = dict.fromkeys(node.devices for node in self.nodes)
        each = " and ".join(map(str, counts))
        words = "device" if list(counts) == [1] else "devices"
        return f"{len(self.nodes)} nodes × {each} {words}" if self.several_machines else ""

    @property
    def on_gpu(self) -> bool:
        return self.config.device == "cuda"

    throughput = part("summary", "throughput_per_s", default=None)  # in the workload's units, over all devices
    median_throughput = part("summary", "median_throughput_per_s")  # if every timed step were the median one
    step_time = part("summary", "step_time_s")  # seconds, of the slowest rank: n, mean, median, p5, p95
    peak_memory = part("summary", "peak_memory_gib", default=[])  # GiB by source, one dict per device, with its rank
    accuracy = part("accuracy", default={})  # empty where nothing was trained or validated
    epochs = part("accuracy", "epochs", default=[])  # one row per epoch
    interruptions = part("elastic", "interruptions", default=[])  # with MIN_DEVICES: as in the definition
    failure = part("failure", default=None)  # rank, kind, message, traceback

    @property
    def samples(self) -> list[Sample]:
        """One per rank; empty for a failed run."""
        return self.form.samples

    @property
    def top1(self) -> float | None:
        """The workload's first metric after the last epoch; None where nothing was validated."""
        return self.accuracy.get(self.workload.metrics[0].key)

    @cached_property
    def observed(self) -> dict:
        return observed_of(self.data)

    @property
    def hung(self) -> bool:
        return self.status == "failed" and self.failure["kind"] == "hung"

    @property
    def failed_on_purpose(self) -> bool:
        """Whether it hung because of a mistake that hangs: a result, not an accident."""
        mistake = MISTAKES.get(self.config.mistake)
        return bool(mistake and mistake.lab.hangs and self.hung)
