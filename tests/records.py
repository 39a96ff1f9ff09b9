"""Made-up records and suites for tests of the report: valid by the schema, with the throughputs that a test asks for.
They never stand for a measurement. GPU records name a "Test GPU", which nobody sells."""

import copy
import dataclasses
import datetime
import hashlib
import json
import math
from pathlib import Path
from types import SimpleNamespace

from bench.analysis.suite import Suite, suites_of
from bench.config.command_line import make_command
from bench.config.modes import MODES
from bench.config.options import LABELS, PLAIN, RunConfig, to_dict
from bench.config.resolve import resolve
from bench.config.workloads import workload_of
from bench.mistakes import MISTAKES
from bench.record import SCHEMA_VERSION
from bench.record.summary import summarise, summarise_accuracy
from bench.record.view import Record
from bench.record.write import describe_topology, provenance_of
from bench.studies.programs import label_of

STEPS = 6
CORES = {"cpu": 2, "cuda": 16}
START = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
PHASES = {"forward": 0.30, "backward": 0.55, "synchronize": 0.05, "optimizer": 0.06}  # shares of a step
GPU_MIB = {"torch_allocated": 5200, "torch_reserved": 6100, "nvml_process": 6900, "nvml_device": 7300}


def record(
    mode: str = "ddp", throughput: float = 100.0, num_devices: int = 2, device: str = "cpu", batch: int = 32,
    seconds: float = 0.0, failed: str | None = None, facts: dict | None = None, phases: dict | None = None,
    memory: dict | None = None, timeline: dict | None = None, top1: list[float] | None = None,
    replicas: dict | None = None, **options,
) -> Record:  # fmt: skip
    """throughput: images per second. batch: images per device per step. seconds: after START. failed: kind of failure.
    facts, phases (shares of a step): laid over the usual ones. memory: source -> GiB, for every device. top1: by epoch,
    which takes 10 s and its validation 1 s more. replicas: their entry in the record. options: RunConfig's."""
    cores = CORES[device]
    options |= {"replicas": True} if replicas else {}
    options = PLAIN | options if device == "cuda" else options
    label = {name: options.pop(name) for name in LABELS.keys() & options.keys()}
    tag = hashlib.sha256(repr((sorted(label.items()), seconds)).encode()).hexdigest()[:4]
    config = RunConfig(mode=mode, num_devices=num_devices, per_device_batch=batch, **options).labelled(**label)
    config = resolve(config, device, cores)
    config = dataclasses.replace(config, warmup_steps=2, timed_steps=STEPS)
    started = START + datetime.timedelta(seconds=seconds)
    frame = {
        "schema_version": SCHEMA_VERSION,
        "run_id": f"{started:%Y%m%d-%H%M%S}-{mode}-{num_devices}x{config.model}-{tag}",
        "status": "failed" if failed else "ok",
        "started_at": started.isoformat(timespec="milliseconds"),
        "command": make_command(config),
        "config": to_dict(config),
        "workload": workload_of(config).to_dict(),
        "environment": environment(device, num_devices),
    }
    if failed:
        failure = {"rank": 0, "kind": failed, "message": f"rank 0 was {failed}", "traceback": ""}
        frame |= {"topology": {}, "samples": [], "summary": {}, "provenance": {}, "failure": failure}
        return Record(frame)
    step_s = config.global_batch / throughput
    parts = [sample(config, rank, started, step_s, facts or {}, phases or {}, memory)
             for rank in range(config.num_processes)]  # fmt: skip
    for part in parts:
        part |= {"timeline": timeline} if timeline else {}
    parts[0] |= {"replicas": replicas} if replicas else {}
    place = SimpleNamespace(
        world_size=len(parts), num_devices=num_devices, devices_per_process=num_devices // len(parts)
    )
    if top1:
        rows = [{"epoch": n, "steps": STEPS * n, "images_seen": 64 * STEPS * n, "train_loss": 1.0 / n, "lr": 0.05,
                 "loss": 1.1 / n, "top1": last, "top5": 1.0, "images": 360, "elapsed_s": 11.0 * n, "validate_s": 1.0,
                 "skipped_steps": 0} for n, last in enumerate(top1, 1)]  # fmt: skip
        frame["accuracy"] = summarise_accuracy(workload_of(config).metrics, config.target, rows)
    frame |= {
        "topology": describe_topology(config, place, "", parts),
        "nodes": [{"ranks": list(range(len(parts)))}],
        "samples": parts,
        "summary": summarise(config.mode, config.global_batch, parts),
        "provenance": provenance_of(config),
    }
    return Record(frame)


def sample(config, rank: int, started, step_s: float, facts: dict, phases: dict, memory) -> dict:
    """One rank's part: steps that waver by 2 % and have this mean."""
    waver = [1 + 0.02 * math.sin(3 * i) for i in range(STEPS)]
    steps = [step_s * w * STEPS / sum(waver) for w in waver]
    begin = started.timestamp()
    whole = len(steps) * step_s
    share = max(1, CORES[config.device] // config.num_processes)
    moments = {"worker_started": begin + 1.0, "joined": begin + 2.0, "first_timed_step": begin + 4.0,
               "last_timed_step": begin + 4.0 + whole}  # fmt: skip
    usual = {
        "norm": "BatchNorm2d × 20", "parameters": 11181642, "trained_parameters": 11181642,
        "parameter_dtype": "float32", "autocast": "off", "tf32": False,
        "waiting_threads": "libgomp GOMP_SPINCOUNT=30000",
        "memory_format": "channels_last" if config.channels_last else "contiguous", "optimizer": "SGD",
        "gradient": "mean over the global batch" if config.sync else "not exchanged", "buffers": "each its own",
    }  # fmt: skip
    usual |= {name: getattr(config, name) for name in ("lr", "momentum", "weight_decay", "compression", "overlap",
                                                       "step_barrier", "item_sync", "storage_ms")}  # fmt: skip
    return {
        "rank": rank, "pid": 1000 + rank, "threads": share, "loader_workers": 0, "step_time_s": steps,
        "data_wait_s": [0.02 * step for step in steps],
        "phase_time_s": {name: [s * step for step in steps] for name, s in (PHASES | phases).items()},
        "moments": moments,
        "initial_weights_sha256": "abcdef0123456789"[(config.seed + (0 if config.init_sync else rank)) % 16] * 64,
        "indices_sha256": "b" * 64,
        "final_weights_sha256": "c" * 64,
        "first_indices": list(range(rank, config.global_batch, config.num_processes)),
        "batch_fingerprints": [(2**20 + config.seed) * config.global_batch // config.num_processes] * 2,
        "facts": usual | facts,
        "devices": devices(config, rank, 4.0 + whole, memory),
    }  # fmt: skip


def devices(config, rank: int, end: float, memory: dict | None) -> list[dict]:
    """What the memory sampler would say of this rank's devices: memory grows until the timed steps and then stays."""
    times, on_gpu = [round(end * i / 12, 3) for i in range(13)], config.device == "cuda"
    mine = range(config.num_devices) if on_gpu and config.num_processes == 1 else [rank]
    found = []
    for index in mine:
        device = {"device": "cpu", "name": "Test CPU", "uuid": None, "energy_j": None}
        usual, more = {"pss": 0.62 + 0.03 * rank + 0.1 * (config.num_devices == 1), "rss_hwm": 0.88}, {}
        if on_gpu:  # it takes 400 W while it computes
            device = {"device": f"cuda:{index}", "name": "Test GPU", "uuid": f"GPU-{index}",
                      "energy_j": 400 * (end - 2.0), "power_limit_w": 700.0}  # fmt: skip
            fuller = 1.25 if len(mine) > 1 and index == 0 else 1.0  # DataParallel gathers on device 0
            usual = {source: round(mib * fuller / 1024, 4) for source, mib in GPU_MIB.items()}
            more = {"power_w": [100.0 if t < 2.0 else 400.0 for t in times], "sm_clock_mhz": [1980] * len(times),
                    "utilization_percent": [5 if t < 2.0 else 98 for t in times]}  # fmt: skip
        peaks = memory or usual
        grown = {f"{source}_gib": [round(peak * min(1.0, 0.35 + 0.65 * t / 2.0), 4) for t in times]
                 for source, peak in peaks.items() if source != "rss_hwm"}  # fmt: skip
        found.append(device | {
            "timeline": {"time_s": times, **grown, **more}, "marks": {"timed": 2.0, "end": end},
            "peak_memory_gib": dict(peaks), "sample_interval_s": 0.25, "sample_cost_s": 0.0005, "notes": [],
        })  # fmt: skip
    return found


def environment(device: str, num_devices: int) -> dict:
    gpus = [
        {"index": i, "name": "Test GPU 80GB", "uuid": f"GPU-{i}", "memory_gib": 80.0}
        for i in range(num_devices if device == "cuda" else 0)
    ]
    cores = CORES[device]
    return {
        "machine": {
            "platform": "Linux", "kernel": "6.1", "architecture": "x86_64", "cpu_model": "Test(R) Processor 3.0",
            "cpu_flags": ["avx2"], "physical_cores": cores, "logical_cores": cores, "usable_cores": cores,
            "cpu_quota_cores": None, "ram_gib": 16.0,
        },
        "driver_version": "550.1" if gpus else None,
        "driver_note": None if gpus else "There is no NVIDIA driver.",
        "devices": gpus,
        "versions": {"python": "3.12.1", "torch": "2.9.0+test", "horovod": "0.28.1", "cuda": "13.0" if gpus else None},
        "git": {"revision": "0123456789abcdef0123456789abcdef01234567", "dirty": False},
        "variables": {"OMP_NUM_THREADS": "1"},
        "threads": {"intra_op": 1, "inter_op": 1},
    }  # fmt: skip


def suite_records(
    study: str, programs: dict | None = None, rounds: int = 8, name: str = "0001", **common
) -> list[Record]:
    """The records of one suite, round by round. programs: label -> the options of ``record``; None: those in PROGRAMS.
    ``throughput``: a number or a list, one per round; a single number gets a noise of 1 % that is the same on
    every call. ``top1``: one list of epochs per round, whose seed is its number; ``replicas``: one dict per round.
    common: options for every record."""
    found, suite = [], f"{study}-20260102-030405-{name}"
    programs = PROGRAMS[study]() if programs is None else programs
    for n in range(rounds):
        for place, (label, options) in enumerate(programs.items()):
            value = options.get("throughput", 100.0)
            speed = value[n] if isinstance(value, list) else value * (1 + 0.01 * math.sin(7 * n + 3 * place))
            seconds = 60.0 * n + 5 * place + (int(name, 16) * 86400)
            more = {"study": study, "suite": suite, "program": label, "round": n, "seconds": seconds}
            more |= {"top1": options["top1"][n], "seed": n} if "top1" in options else {}
            more |= {"replicas": options["replicas"][n]} if "replicas" in options else {}
            found.append(record(**common | options | more | {"throughput": speed}))
    return found


def suite(study: str, programs: dict | None = None, rounds: int = 8, change=None, of=None, **common) -> Suite:
    """The suite of those records. change: made by ``edited`` in the records of program ``of``, or in all."""
    found = suite_records(study, programs, rounds, **common)
    return one_suite(edited(found, change, of) if change else found)


def one_suite(records: list[Record]) -> Suite:
    (found,) = suites_of(records)
    return found


def compare_programs(num_devices: int = 2, **speeds) -> dict[str, dict]:
    """The programs of a comparison, all on the same global batch."""
    usual = {"single": 100.0, "dp": 82.0, "ddp": 91.0, "horovod": 90.5, "independent": 104.0} | speeds
    return {mode: {"mode": mode, "throughput": speed, **shape(mode, num_devices)} for mode, speed in usual.items()}


def shape(mode: str, num_devices: int, batch: int = 32) -> dict:
    """Devices and batch of a mode: one with a single device takes the whole global batch."""
    if MODES[mode].max_devices == 1:
        return {"num_devices": 1, "batch": batch * num_devices}
    return {"num_devices": num_devices, "batch": batch}


def scaling_programs(kind: str, counts=(2, 4)) -> dict[str, dict]:
    """The programs of weak or strong scaling: the base and every mode at each number of devices, on two cores."""
    whole = 32 * max(counts)
    programs = {"single 1": {"mode": "single", "num_devices": 1, "batch": 32 if kind == "weak" else whole}}
    for count in counts:
        for mode, factor in {"dp": 0.8, "ddp": 0.93, "horovod": 0.91, "independent": 1.0}.items():
            speed = 100.0 * factor * min(count, 1.9) * 0.97 ** max(0, count - 2)
            options = {"mode": mode, "num_devices": count, "batch": 32 if kind == "weak" else whole // count}
            programs[f"{mode} {count}"] = options | {"throughput": speed}
    return programs


def breakdown_programs() -> dict[str, dict]:
    """The programs of a breakdown: each mode, and those that can without their exchange."""
    programs = {"dp": {"mode": "dp", "throughput": 80.0}}
    for mode, speed in {"ddp": 91.0, "horovod": 86.0}.items():
        programs[mode] = {"mode": mode, "throughput": speed}
        programs[f"{mode} no_sync"] = {"mode": mode, "throughput": 101.0, "sync": False, "phases": {"synchronize": 0.0}}
    programs["horovod"]["phases"] = {"forward": 0.28, "backward": 0.45, "synchronize": 0.17}
    return programs


def profiled_records(**common) -> list[Record]:
    """A breakdown of two rounds with a profiled step of dp, whose scatter, replicate and gather take 4, 12.5 and 2 ms,
    and of ddp, whose second bucket lies half under its backward pass."""
    found = suite_records("breakdown", rounds=2, **common)
    parts = {"scatter": (0, 4), "replicate": (4, 16.5), "forward": (16.5, 80), "gather": (80, 82)}
    dp = [span("dp", *each) for each in parts.items()]
    ddp = [span("phase", "forward", (0, 100)), span("phase", "backward", (100, 290)),
           span("phase", "optimizer", (290, 320)), span("compute", "operators", (0, 240)),
           span("communication", "buffers", (0, 5)),
           span("communication", "bucket 0", (150, 200), 10 * 2**20),
           span("communication", "bucket 1", (220, 260), 33 * 2**20)]  # fmt: skip
    for mode, spans in {"dp": dp, "ddp": ddp}.items():
        timeline = {"step": 9, "step_s": 0.32, "spans": spans, "notes": []}
        labels = {"study": "breakdown", "suite": found[0].label.suite, "program": mode, "round": 0, "seconds": 900}
        found.append(record(mode, profile=True, timeline=timeline, **common | labels))
    return found


def span(lane: str, name: str, ms: tuple[float, float], size: int | None = None) -> dict:
    return {"lane": lane, "name": name, "start_s": ms[0] / 1000, "end_s": ms[1] / 1000, "bytes": size}


def sweep_programs() -> dict[str, dict]:
    """The programs of a sweep of ddp's settings, one at a time, and some crossed as before version 0.2."""
    points = [{}, *({"bucket_cap_mb": cap, "gradient_as_bucket_view": view}
                    for cap in (1.0, 5.0, 25.0, 100.0) for view in (False, True))]  # fmt: skip
    points += [{"static_graph": True}, {"overlap": False}, {"compression": "fp16"}, {"compression": "powersgd"}]
    speeds = [91.0, 84.0, 84.3, 89.0, 89.3, 91.0, 91.3, 96.0, 96.3, 91.1, 86.0, 79.0, 70.0]
    return {label_of("ddp", point): {"mode": "ddp", "throughput": speed, **point}
            for point, speed in zip(points, speeds, strict=True)}  # fmt: skip


def grid_programs() -> dict[str, dict]:
    """The programs of a grid: horovod is slower than ddp, bf16 faster than fp32, and large batches are the fastest."""
    return {
        f"{mode} batch={batch} precision={precision}": {
            "mode": mode, "batch": batch, "precision": precision, "variant": "grid",
            "throughput": speed * batch**0.3 * (1.2 if precision == "bf16" else 1.0),
            "facts": {"autocast": "bfloat16"} if precision == "bf16" else {},
        }
        for mode, speed in {"ddp": 40.0, "horovod": 36.0}.items()
        for batch in (16, 32, 64, 128)
        for precision in ("fp32", "bf16")
    }  # fmt: skip


# Three seeds: dp ends as single does within a point, ddp is shown to be worse, of horovod too little is known.
SEEDS = {"single": [0.985, 0.990, 0.988], "dp": [0.986, 0.989, 0.989], "ddp": [0.935, 0.939, 0.939],
         "horovod": [0.990, 0.970, 0.999]}  # fmt: skip


def accuracy_programs(**top1) -> dict[str, dict]:
    """The programs of an accuracy suite of three epochs. top1: mode -> that of the last epoch, one per seed; an epoch
    back is 2 points less; SEEDS where nothing is given."""
    trained = {"epochs": 3, "target": 0.98, "checkpoint": False, "data": "digits"}
    return {
        mode: {"mode": mode, **shape(mode, 2), **trained, "top1": [[x - 0.04, x - 0.02, x] for x in seeds]}
        for mode, seeds in (top1 or SEEDS).items()
    }


def unsynced_programs() -> dict[str, dict]:
    """The programs of a suite of replicas that start apart, four seeds. Of ddp's unsynchronised ranks the first loses 3
    points and the second, judged with the buffers of the first, 50; of Horovod's none loses any. One layer is twice as
    far apart as the other, and all shrink by 1 % per step."""
    trained = {"epochs": 1, "checkpoint": False, "data": "digits", "weight_decay": 0.1, "momentum": 0.0, "lr": 0.1}
    seeds = [0.95, 0.96, 0.94, 0.955]
    losses = {"ddp": [0.0, 0.0], "ddp unsynced": [0.03, 0.5], "horovod": [0.0, 0.001],
              "horovod unsynced": [0.0, 0.001], "dp": [0.002]}  # fmt: skip
    return {
        label: {"mode": label.split()[0], **trained, "init_sync": "unsynced" not in label,
               "top1": [[seed - lost[0]] for seed in seeds],
               "replicas": [replicas_of([seed - x + 0.001 * (n % 2) for x in lost], "unsynced" in label)
                            for n, seed in enumerate(seeds)]}
        for label, lost in losses.items()
    }  # fmt: skip


def replicas_of(top1: list[float], apart: bool) -> dict:
    """What a record contains about replicas. top1: one per rank."""
    steps = list(range(STEPS + 1)) if len(top1) > 1 else []
    theory = [0.99**step for step in steps]
    layers = {name: [size * apart * factor for factor in theory] for name, size in {"conv1": 2.0, "fc": 1.0}.items()}
    judged = {"top1": min(top1), "loss": 1.0}
    return {
        "steps": steps, "lr": [None, *[0.1] * STEPS][: len(steps)], "by_layer": layers, "theory": theory or None,
        "distance": [math.hypot(*each) for each in zip(*layers.values(), strict=True)],
        "ranks_top1": [top1], "ranks_loss": [[1.0] * len(top1)],
        "average": {"averaged_buffers": judged, "estimated_statistics": judged} if steps else {},
    }  # fmt: skip


def format_programs() -> dict[str, dict]:
    """The programs of a sweep of training options, one at a time."""
    points = [{}, {"channels_last": True}, {"precision": "bf16", "facts": {"autocast": "bfloat16"}}, {"compile": True}]
    return {label_of("single", {name: each[name] for name in each if name != "facts"}):
            {"mode": "single", "num_devices": 1, **each} for each in points}  # fmt: skip


def replay_programs() -> dict[str, dict]:
    """A replayed unfairness: ddp is faster than dp, and with a barrier every step it seems slower."""
    return {
        "base: dp": {"mode": "dp", "throughput": 88.0, "variant": "base"},
        "fair: ddp": {"mode": "ddp", "throughput": 94.0, "variant": "fair"},
        "unfair: ddp": {"mode": "ddp", "throughput": 81.0, "step_barrier": True, "variant": "unfair"},
    }


PROGRAMS = {
    "compare": compare_programs, "weak": lambda: scaling_programs("weak"), "strong": lambda: scaling_programs("strong"),
    "breakdown": breakdown_programs, "sweep": sweep_programs, "accuracy": accuracy_programs,
    "unsynced": unsynced_programs, "replay": replay_programs,
}  # fmt: skip


def edited(records: list[Record], change, program: str | None = None) -> list[Record]:
    """Copies of records with ``change(data)`` made in those of a program; in all where none is named."""
    copies = [(record.program, copy.deepcopy(record.data)) for record in records]
    for label, data in copies:
        if program in (None, label):
            change(data)
    return [Record(data) for _, data in copies]


def loaded(records: list[Record], others: float, steal: float | None = 0.0) -> list[Record]:
    """Copies of records that measured the load: other processes took this share of the CPU, and the host this one."""

    def load(data: dict) -> None:
        for rank, part in enumerate(data["samples"]):
            part["load"] = {"local_rank": rank, "own_cpu_s": 1.0, "wall_s": 10.0, "cores": 2, "pressure_s": None,
                            "machine_cpu_s": len(data["samples"]) + 20 * others,
                            "steal_s": None if steal is None else 20 * steal}  # fmt: skip
        summarise_again(data)

    return edited(records, load)


def summarise_again(data: dict) -> None:
    data["summary"] = summarise(data["config"]["mode"], data["topology"]["global_batch"], data["samples"])


def on_nodes(record: Record, *names: str, network: str | None = None, of_last: dict | None = None) -> Record:
    """A copy of a record whose ranks sat on these machines, as many on each. of_last: laid over the environment of the
    last one."""
    data = copy.deepcopy(record.data)
    if network:
        data["network"] = {"label": network}
    if len(names) > 1:
        each = len(data["samples"]) // len(names)
        data["nodes"] = [
            {"ranks": list(range(n * each, (n + 1) * each)), "name": name, "devices": each, "interface": "eth0",
             "link_speed_mbit": 1000,
             **({"environment": copy.deepcopy(data["environment"])} if n else {})}
            for n, name in enumerate(names)
        ]  # fmt: skip
        for part in data["samples"]:
            part["node"] = part["rank"] // each
        summarise_again(data)
        data["nodes"][-1]["environment"] |= of_last or {}
    return Record(data)


def in_samples(change):
    """``edited``'s change of a record from one of each rank's part."""

    def change_all(data: dict) -> None:
        for part in data["samples"]:
            change(part)

    return change_all


def store(folder: Path, records: list[Record]) -> Path:
    for number, record in enumerate(records):
        run = Path(folder) / f"{number:04d}-{record.run_id}"
        run.mkdir(parents=True)
        (run / "record.json").write_text(json.dumps(record.data))
    return Path(folder)


# What the two versions of a mistake would have been observed to do, as far as the made-up demos need it.
RIGHT = {
    "data": {"num_images": 1437, "global_batch": 96, "same_neighbours": 0.001, "shared_in_a_step": 0.0,
             "never_seen": 0},
    "reported": {"top1": [[0.9, 0.95]] * 2}, "writers": {"latest.pt": [0]}, "augmentation": {"streams": ["1", "2"]},
    "gradient": {"over_mean": 1.0, "same_on_all_ranks": True, "kind": "mean"}, "host_syncs": [],
}  # fmt: skip
WRONG = {
    "data": RIGHT["data"] | {"same_neighbours": 1.0, "shared_in_a_step": 0.02, "never_seen": 29},
    "reported": {"top1": [[0.9, 0.94], [0.9, 0.97]]}, "writers": {"latest.pt": [0, 1]},
    "augmentation": {"streams": ["1", "1"]}, "gradient": RIGHT["gradient"] | {"over_mean": 2.0},
    "host_syncs": [{"where": "train.py:9 item", "per_step": 1.0}],
}  # fmt: skip


def lab_records(name: str, rounds: int = 3, number: str = "0001", wrong: dict | None = None, hung=None) -> list[Record]:
    """A mistake demo's records. wrong: laid over what was observed of the wrong version. hung: where the ranks stood,
    by rank, when it was ended; otherwise it ends well."""
    trained = {"mode": "ddp", **shape("ddp", 2), "epochs": 2, "data": "digits", "checkpoint": False}
    trained |= MORE.get(name, {})
    seeds = [[0.90, 0.95], [0.91, 0.96], [0.90, 0.94]][:rounds]
    right = trained | {"variant": "right", "top1": seeds}
    mistaken = trained | {"variant": "wrong", "top1": seeds[::-1]} | MISTAKES[name].wrong
    programs = {f"right: {name}": right, f"wrong: {name}": mistaken}
    found = []
    for record in suite_records("lab", programs, rounds, number):
        side = record.label.variant
        data = record.data | {"observed": (RIGHT if side == "right" else WRONG | (wrong or {}))}
        if name == "many-writers" and side == "wrong":
            data["samples"][0]["lab"] = {"files": {"rank 0": 1, "rank 1": 3}}
        if hung and side == "wrong":
            for part in ("observed", "accuracy", "nodes"):
                data.pop(part)
            failure = {"rank": 0, "kind": "hung", "message": "no progress", "traceback": "", "after_s": 27.5,
                       "where": hung}  # fmt: skip
            data |= {"status": "failed", "topology": {}, "samples": [], "summary": {}, "failure": failure}
        found.append(Record(data))
    return found


# What both versions of a demo need in addition to the mistake.
MORE = {"strict-false": {"pretrained": "weights.pt"}, "lr-not-scaled": {"lr_batch": 32}, "local-norm": {"norm": "sync"},
        "same-augmentation": {"augment": True}, "many-writers": {"checkpoint": True}}  # fmt: skip
