"""What records contain: the definition against which every file is checked, before it is written and when it is read.

Units are suffixes of the names; GiB is 2^30 bytes. ``python -m bench.record.definition`` prints the JSON schemas that
follow from it. A TypedDict allows further names, which are not checked.
"""
# ruff: noqa: UP013  (a TypedDict of a few names is one line)

import json
from typing import Annotated, Literal, NotRequired, TypedDict

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from bench.config.modes import MODES
from bench.config.sections import PRECISIONS
from bench.config.workloads import WorkloadInfo
from bench.record import SCHEMA_VERSION

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Devices = Annotated[int, Meta(ge=1, le=1_000_000)]  # or ranks, threads, cores
FewOrNone = Annotated[int, Meta(ge=0, le=1_000_000)]
Several = Annotated[int, Meta(ge=2, le=1_000_000)]
Number = int | float
Amount = Annotated[float, Meta(ge=0)]
Large = Annotated[float, Meta(ge=0, le=1e9)]
Seconds = Annotated[float, Meta(ge=1e-9, le=1e9, description="measured: at least a nanosecond")]
AboveZero = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Short = Annotated[str, Meta(min_length=1, max_length=300)]
Name = Annotated[str, Meta(max_length=1000)]
Dtype = Annotated[str, Meta(max_length=50)]
Hash = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Time = Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{3}(\d{3})?)?(\+00:00)?$")]
Dim = Annotated[int, Meta(ge=1, le=10**12)]
Bytes = Annotated[int, Meta(ge=4)]
StepSeconds = Annotated[list[Large], Meta(min_length=1, max_length=100)]
Columns = dict[str, list[Number | None]]
Scalar = str | int | float | bool | None
Git = TypedDict("Git", {"revision": str | None, "dirty": bool | None})
Gpu = TypedDict("Gpu", {"name": str})
Buffers = TypedDict("Buffers", {"dtype": Dtype, "bytes": Count})
SkippedSize = TypedDict("SkippedSize", {"bytes": Bytes, "expected_s": Amount})
MemoryParts = TypedDict("MemoryParts", {"source": str, "notes": list[str], "gib": NotRequired[dict[str, Large]]})


class Strict(Struct, frozen=True, forbid_unknown_fields=True):
    """A part that allows no further names."""


def require(value: dict, form, where: str) -> None:
    """Raise ValueError if a part that is kept as it is does not have this form."""
    try:
        msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {error}") from None


# --- the machine ----------------------------------------------------------------------------------------------------


class Machine(TypedDict, total=False):
    cpu_model: str
    usable_cores: Devices
    ram_gib: float | None


class Environment(TypedDict, total=False):
    machine: Machine
    versions: dict[str, str | None]
    driver_version: str | None
    driver_note: str | None
    source_sha256: str | None
    devices: list[Gpu] | None
    git: Git | None
    variables: dict[str, str] | None


class Node(Struct, frozen=True, kw_only=True):
    """One machine of a run; on a single machine only the ranks. Older records contain the offset of its clock."""

    ranks: list[Count]
    environment: Environment | UnsetType = UNSET  # absent for the first machine: it is the record's
    name: Short | UnsetType = UNSET  # as in HOSTS, or the host name
    devices: Positive | UnsetType = UNSET
    interface: str | None = None  # by which it reaches the others
    link_speed_mbit: Amount | None = None  # of the interface, or the limit of a cluster of namespaces


class Load(TypedDict):
    """CPU seconds during the timed steps: of this rank, and of all processes on its machine."""

    own_cpu_s: Amount
    machine_cpu_s: float
    wall_s: Seconds
    cores: Devices
    local_rank: NotRequired[Count]
    interrupts_s: NotRequired[float]
    steal_s: NotRequired[float | None]
    pressure_s: NotRequired[float | None]
    involuntary_switches: NotRequired[int]
    page_faults: NotRequired[int]
    cpu_mhz: NotRequired[float | None]
    machine: NotRequired[Count]  # ranks with the same number share the processor, whatever their node is called


Network = dict[Literal["label"], Short]  # shown wherever metrics of the run are shown


# --- what one rank measured -----------------------------------------------------------------------------------------


class Device(TypedDict):
    """Memory over time and its peaks. processes: those that NVML listed on the GPU while it was sampled."""

    device: str
    timeline: Columns
    peak_memory_gib: dict[str, Large | None]
    memory_parts: NotRequired[MemoryParts]  # with MEMORY=1: what filled it at the peak of one more step, by purpose
    name: NotRequired[str | None]
    uuid: NotRequired[str | None]
    marks: NotRequired[dict[str, float]]
    processes: NotRequired[list[int]]
    energy_j: NotRequired[float | None]
    power_limit_w: NotRequired[float | None]
    sample_interval_s: NotRequired[float]
    sample_cost_s: NotRequired[float | None]
    notes: NotRequired[list[str]]


class Tensor(TypedDict):
    """needed_s: from the beginning of forward to the call of the module that has it. ready_s: from the beginning of
    backward to the moment when its gradient was accumulated. block: what fsdp shards as one, or empty."""

    name: Name
    shape: list[Dim]
    dtype: Dtype
    block: Name
    needed_s: StepSeconds
    ready_s: StepSeconds


class Profile(TypedDict):
    """With PROFILE=1 on one device: a value for each of a few steps after the timed ones."""

    forward_s: StepSeconds
    backward_s: StepSeconds
    parameters: Annotated[list[Tensor], Meta(min_length=1)]  # those with a gradient, in the model's order
    buffers: list[Buffers]


class Span(TypedDict):
    lane: Literal["phase", "compute", "communication", "dp"]
    name: str
    start_s: float
    end_s: float
    bytes: int | None


class Timeline(TypedDict):
    """start_s: when this rank began the step, after the first rank that did. clock_error_s: the largest error of that
    between machines, whose clocks differ. Older records lack both."""

    step: Count
    step_s: Seconds
    spans: list[Span]
    notes: list[str]
    start_s: NotRequired[Amount]
    clock_error_s: NotRequired[Amount]


class Replicas(TypedDict):
    """On rank 0: how far apart the replicas were after some steps. The accuracy of each is under ranks_METRIC."""

    steps: list[Count]
    lr: list[float | None]
    distance: list[float | None]
    by_layer: dict[str, list[float | None]]
    theory: list[float] | None
    ranks_loss: list[list[float | None]]
    average: dict[Literal["averaged_buffers", "estimated_statistics"], dict[str, Number | None]]


class Facts(TypedDict):
    norm: str
    lr: float
    item_sync: bool
    step_barrier: bool
    memory_format: NotRequired[str]
    flops_per_example: NotRequired[AboveZero]  # forward and backward; of rank 0
    hardware_flops_per_example: NotRequired[AboveZero]  # and what activation checkpointing computes again
    flops_per_token: NotRequired[AboveZero]  # of gpt in older records
    recomputed_blocks: NotRequired[Count]


class Timed(Struct, frozen=True, kw_only=True):
    """What reports read of a rank, of this project's runs and of scripts under `bench time`."""

    rank: Count
    threads: Devices
    step_time_s: Annotated[list[Seconds], Meta(min_length=1)]  # every timed step in order
    data_wait_s: Annotated[list[Large], Meta(min_length=1)]
    devices: Annotated[list[Device], Meta(min_length=1)]
    load: Load | UnsetType = UNSET
    facts: dict[str, Scalar] | UnsetType = UNSET  # what it did, read from its live objects


class Sample(Timed, frozen=True, kw_only=True):
    """What one rank of a run measured. Values missing in older records are UNSET, which is false."""

    pid: Count
    loader_workers: FewOrNone
    moments: dict[str, AboveZero]  # seconds since 1970, monotonic: see MOMENTS
    first_indices: Annotated[list[Count], Meta(min_length=1)]  # the examples of the first step
    # One number a step for its examples; the ranks' numbers add up, modulo 2^48, to the global batch's.
    batch_fingerprints: Annotated[list[Count], Meta(min_length=1)]
    initial_weights_sha256: Hash
    indices_sha256: Hash
    final_weights_sha256: Hash
    phase_time_s: dict[str, list[Large]] = {}
    profile: Profile | UnsetType = UNSET
    timeline: Timeline | UnsetType = UNSET
    replicas: dict | UnsetType = UNSET
    averages_sha256: dict[str, Hash] | UnsetType = UNSET  # with EMA or SWA: the average's parameters at the end
    lab: dict[Literal["files"], dict[str, Count]] = {}  # what a mistake noted
    notes: list[str] = []
    skipped_steps: Count = 0
    skipped_images: list[str] = []  # could not be read (SKIP_BAD=1)
    node: Count = 0  # with several machines: the index of this rank's in ``nodes``

    def __post_init__(self):
        if missing := [name for name in MOMENTS if name not in self.moments]:
            raise ValueError(f"moments: {missing[0]} is missing")
        if self.facts is not UNSET:
            require(self.facts, Facts, "facts")
        if self.replicas is not UNSET:
            require(self.replicas, Replicas, "replicas")
            columns = [self.replicas["distance"], *self.replicas["by_layer"].values()]
            if any(column[:1] == [None] for column in columns):  # later ones may be infinite
                raise ValueError("replicas: the distance before the first step is missing")
        for device in self.devices:
            columns, peaks = device["timeline"], device["peak_memory_gib"]
            if None in columns.get("time_s", [None]):
                raise ValueError("devices: timeline: time_s is missing")
            if any(type(bits) is float for bits in columns.get("throttle_reasons", ())):
                raise ValueError("devices: timeline: throttle_reasons must be integers")
            if {"rank", "device", "node"} & peaks.keys():  # tables have columns of these names
                raise ValueError("devices: peak_memory_gib: a memory source cannot be named rank, device or node")
            if "marks" in device and not {"timed", "end"} <= device["marks"].keys():
                raise ValueError("devices: marks: timed or end is missing")


MOMENTS = ("worker_started", "joined", "first_timed_step", "last_timed_step")


# --- the run --------------------------------------------------------------------------------------------------------


class Topology(TypedDict):
    world_size: Devices
    num_devices: Devices
    devices_per_process: Devices
    device: Literal["cpu", "cuda"]
    threads_total: FewOrNone
    threads_allowed: FewOrNone
    loader_workers_total: FewOrNone
    global_batch: Positive
    notes: list[str]


class Summary(TypedDict):
    """All of it follows from the samples, and the reader checks that it does."""

    throughput_per_s: AboveZero
    step_time_s: dict[Literal["n", "mean", "median", "p5", "p95"], AboveZero]
    data_wait_s: dict[Literal["median", "p95"], Amount]
    peak_memory_gib: Annotated[list[dict[str, str | float | None]], Meta(min_length=1)]  # by source; rank, device
    command_to_first_timed_step_s: float
    median_throughput_per_s: NotRequired[AboveZero]


class Epoch(TypedDict):
    """A row has also the workload's metrics, and those of an average of the weights under ema_METRIC, swa_METRIC."""

    epoch: Count
    steps: Count
    elapsed_s: Amount
    top1: NotRequired[Share]
    top5: NotRequired[Share]
    ema_top1: NotRequired[Share]
    swa_top1: NotRequired[Share]
    loss: NotRequired[float | None]  # null: it was not finite
    train_loss: NotRequired[float | None]
    lr: NotRequired[float]
    validate_s: NotRequired[float]
    skipped_steps: NotRequired[Count]
    images: NotRequired[Positive]  # of the validation set, each counted once


class Accuracy(TypedDict):
    epochs: Annotated[list[Epoch], Meta(min_length=1)]
    best_top1: NotRequired[Share]
    target: NotRequired[float]
    time_to_accuracy_s: NotRequired[float | None]  # training and validation until the first epoch that reaches target


class Interruption(Strict, frozen=True):
    when_s: float  # after the command began
    rank: Count | None  # of the process that was lost, as it was started
    host: str | None  # its machine, as in HOSTS
    kind: Literal["killed", "raised", "machine lost", "launcher", "joined", "unseen"]
    seconds_lost: Amount  # from the last step done until training was at the same step again, or interrupted again
    steps_repeated: Count
    devices_before: Positive
    devices_after: Positive


class Elastic(Strict, frozen=True):
    """With MIN_DEVICES: what the run survived. rule: what happens to global batch and learning rate when the number of
    devices changes."""

    least_devices: Positive
    rule: Name
    interruptions: list[Interruption]
    epochs: list[dict[Literal["epoch", "once", "more", "never"], Count]]  # examples that count in the weights


class Place(Strict, frozen=True):
    """The line of a rank's main thread in a run that hung. collective: null in a backward pass."""

    file: str
    line: int
    function: str
    collective: bool | None


class Try(Strict, frozen=True):
    """A short run of BATCH=max. peak_gib: of the fullest device, if no rank ran out of memory."""

    program: Short
    batch: Positive
    fitted: bool
    peak_gib: Large | None


class Failure(TypedDict):
    rank: FewOrNone | None
    kind: Literal["raised", "killed", "hung", "interrupted", "launcher"]
    message: str
    traceback: str
    where: NotRequired[list[Place | None]]
    after_s: NotRequired[Large]
    out_of_memory: NotRequired[bool]  # by the type of the error, or the kernel's count of killed processes


class Frame(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="status"):
    schema_version: Literal[SCHEMA_VERSION]
    run_id: Short
    started_at: Time
    command: str
    config: dict  # the options (bench/config/options.py), each checked when the record is read
    workload: WorkloadInfo  # what throughput counts, and the metrics: the first is the one that studies compare
    topology: dict
    environment: Environment
    samples: Annotated[list[Sample], Meta(max_length=0)]
    summary: Annotated[dict, Meta(max_length=0)]
    provenance: dict[str, str]
    nodes: list[Node] | UnsetType = UNSET
    accuracy: Accuracy | UnsetType = UNSET
    observed: dict | UnsetType = UNSET  # bench/record/observed.py; checked by applying the detectors
    elastic: Elastic | UnsetType = UNSET
    batch_search: list[Try] | UnsetType = UNSET  # with BATCH=max, how BATCH was found
    network: Network | UnsetType = UNSET
    failure: Failure | UnsetType = UNSET

    def __post_init__(self):
        if not self.workload.metrics or not 1 <= self.workload.per_example <= 10**9:
            raise ValueError("workload: no metrics, or per_example is out of range")
        if any(metric.better not in ("up", "down") or not metric.margin > 0 for metric in self.workload.metrics):
            raise ValueError("workload: metrics: better must be up or down, and margin above 0")


class Completed(Frame, frozen=True, kw_only=True, tag="ok"):
    nodes: list[Node]
    topology: Topology
    samples: Annotated[list[Sample], Meta(min_length=1)]
    summary: Summary

    def __post_init__(self):
        super().__post_init__()
        if not self.environment.get("machine") or not {"versions", "git"} <= self.environment.keys():
            raise ValueError("environment: machine, versions or git is missing")
        if missing := {"step_time_s", "throughput_per_s", "peak_memory_gib", "data_wait_s"} - self.provenance.keys():
            raise ValueError(f"provenance: {min(missing)} is missing")


class Evaluated(Frame, frozen=True, kw_only=True, tag="evaluated"):
    accuracy: Accuracy


class Failed(Frame, frozen=True, kw_only=True, tag="failed"):
    failure: Failure


Run = Completed | Evaluated | Failed


# --- records of other kinds -----------------------------------------------------------------------------------------


class Other(Struct, frozen=True, kw_only=True):
    run_id: Short
    started_at: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")]
    environment: Environment
    provenance: dict[str, str]
    network: Network | UnsetType = UNSET
    nodes: list[Node] | UnsetType = UNSET


class Asked(TypedDict):
    warmup: Positive
    steps: Positive | None
    watch: bool
    batch: Annotated[int, Meta(ge=1, le=10**9)] | None


class ScriptTopology(TypedDict):
    world_size: Devices
    num_devices: Devices
    device: Literal["cpu", "cuda"]
    global_batch: Annotated[int, Meta(ge=1, le=10**15)] | None
    batch_from: Literal["BATCH", "Watch"] | None
    threads_total: Positive


class ScriptSample(Timed, frozen=True, kw_only=True):
    """What one rank of a script measured. between_s: intervals in which a DataLoader was started or the model
    evaluated; they are not steps. other_steps: of optimizers whose steps are not timed."""

    load: Load
    pid: Positive
    steps_taken: Positive
    step_number: Annotated[list[Annotated[int, Meta(ge=2)]], Meta(min_length=1)]
    data_wait_s: list[Amount]
    watch_s: list[Amount]
    between_s: list[Amount]
    images: Positive | None
    other_steps: Count = 0


class Script(Other, frozen=True, kw_only=True):
    """An external training script, timed by `bench time`. observed: null without a Watch. unheard: mistake -> why it
    was not checked."""

    foreign_version: Literal[1]
    kind: Literal["foreign script"]
    name: Annotated[str, Meta(min_length=1, max_length=200)]  # two records of one name are of one program
    command: Annotated[str, Meta(max_length=20_000)]  # paths shortened, without what looks like a secret
    script_sha256: Annotated[str, Meta(max_length=64)] | None
    asked: Asked
    engine: Annotated[str, Meta(max_length=100)]
    topology: ScriptTopology
    samples: Annotated[list[ScriptSample], Meta(min_length=1)]
    observed: dict | None
    unheard: dict[str, str]


class PairTopology(TypedDict):
    world_size: Several
    num_devices: Several
    device: Literal["cpu", "cuda"]


class PairConfig(TypedDict):
    mode: Literal[tuple(MODES)]
    device: Literal["cpu", "cuda"]
    num_devices: Several


class Exchange(Other, frozen=True, kw_only=True):
    status: Literal["ok"]
    config: dict[str, Scalar]
    topology: PairTopology
    nodes: Annotated[list[Node], Meta(min_length=1)]

    def __post_init__(self):
        require(self.config, PairConfig, "config")


class NetworkPlan(TypedDict):
    sizes: Annotated[list[Bytes], Meta(min_length=1, max_length=100)]
    rounds: Positive
    budget_s: AboveZero


class MeasuredSize(TypedDict):
    """seconds: of one operation, of a ping_pong there and back; one list per rank that took part, one value per
    round."""

    bytes: Bytes
    in_a_row: Positive
    seconds: Annotated[list[Annotated[list[Seconds], Meta(min_length=1)]], Meta(min_length=1)]


class Operation(TypedDict):
    name: Literal["ping_pong", "all_reduce", "all_gather", "reduce_scatter"]
    ranks: Annotated[list[Count], Meta(min_length=2)]
    sizes: Annotated[list[MeasuredSize], Meta(min_length=1)]
    left_out: list[SkippedSize]


class Product(TypedDict):
    """seconds: of a product of two n x n matrices, the shortest of several, by rank; all ranks computed together."""

    precision: Literal[PRECISIONS]
    n: Positive
    seconds: Annotated[list[Seconds], Meta(min_length=2)]


class NetworkRun(Exchange, frozen=True, kw_only=True):
    """Times of messages with one backend. load: by rank, from before the first message to after the last.
    unsupported: operation -> why the backend does not have it."""

    network_version: Literal[1]
    backend: Literal["gloo", "nccl", "horovod"]
    carrier: Literal["gloo", "nccl"]  # what carries the messages of backend
    plan: NetworkPlan
    operations: Annotated[list[Operation], Meta(min_length=1)]
    unsupported: dict[Name, Short] | UnsetType = UNSET
    products: list[Product] | UnsetType = UNSET
    load: Annotated[list[Load], Meta(min_length=2)]


class PlannedTensor(Strict, frozen=True):
    name: Name
    block: Name
    shape: list[Dim]
    needed_s: Large
    ready_s: Large


class StepProfile(Strict, frozen=True):
    """One device's median step. factors: each timed step divided by it."""

    source: Name
    what: Name
    machine: Name
    unit: Name
    device: Literal["cpu", "cuda"]
    units: Positive
    forward_s: Large
    backward_s: Large
    optimizer_s: Large
    other_s: Large
    factors: Annotated[list[Annotated[float, Meta(gt=0, le=1e9)]], Meta(min_length=1)]
    tensors: Annotated[list[PlannedTensor], Meta(min_length=1)]
    buffers: list[tuple[Name, Count]]


class EmulationPlan(Strict, frozen=True):
    dilate: Annotated[float, Meta(ge=1, le=1e6)]
    rate_mbit: AboveZero | None
    latency_ms: Amount
    profile: StepProfile


class EmulatedSample(Struct, frozen=True):
    rank: Count
    step_time_s: Annotated[list[Seconds], Meta(min_length=1)]
    phase_time_s: dict[str, Annotated[list[Seconds], Meta(min_length=1)]]
    load: Load
    timeline: Timeline | UnsetType = UNSET


class EmulatedRun(Exchange, frozen=True, kw_only=True):
    """Ranks that wait in place of computing, with the real communication of the mode; seconds are those of this
    machine."""

    emulation_version: Literal[1]
    kind: Annotated[str, Meta(pattern="^emulated")]
    plan: EmulationPlan
    facts: dict[str, str]
    samples: Annotated[list[EmulatedSample], Meta(min_length=2)]


if __name__ == "__main__":
    schemas, parts = msgspec.json.schema_components([Run, Script, NetworkRun, EmulatedRun])
    print(json.dumps({"anyOf": list(schemas), "$defs": parts}, indent=1))
