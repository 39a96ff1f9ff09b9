"""A record in words: its machine, its devices, its row of a table."""

import re
import statistics
from collections import Counter

from bench import formulas
from bench.config.fields import option_value
from bench.config.modes import MODES, describe_emulation
from bench.config.options import PROGRAM, UNSET, WORK, names
from bench.config.peak_flops import peak_of
from bench.config.sections import AVERAGES, Data, Model
from bench.measure import waiting
from bench.measure.environment import cores_in_words
from bench.profile.memory_parts import surplus
from bench.record.disturbance import LABEL, disturbances_of, disturbed
from bench.record.summary import joules_per_example
from bench.record.view import Record

MEMORY_ORDER = ("nvml_process", "nvml_device", "torch_reserved", "torch_allocated", "pss", "uss", "rss")
COMPUTE = ("python", "torch", "horovod", "numpy", "cuda", "cudnn", "nccl")  # libraries that compute and communicate
CLOCKS = 1.1  # highest over lowest clock of the runs that are compared
# Options that a table of runs shows in separate columns or names, and those that change neither work nor speed.
IN_COLUMNS = {"mode", "num_devices", "device", "share_gpu", "model", "layers", "width", "data", "image_size", "context",
              "per_device_batch", "plain", "tuned", "mistake", "timed_steps", "warmup_steps", "memory", "val_batch",
              "in_memory", "profile_kept"}  # fmt: skip
NO_MEMORY = re.compile("out of memory|OutOfMemoryError|ALLOC_FAILED|can't allocate memory")  # torch, NCCL, cuDNN
UNEVEN = 1.1  # mean step over median step: 95 % of the committed records lie below


def machine_line(record: Record) -> str:
    """Machine, devices, versions and network of a record in one line, for the head of a table or a picture."""
    on = " and ".join(f"{count}× {name}" for name, count in Counter(used_gpus(record)).items()) or "CPU only"
    parts = [f"{on}: {record.machine['cpu_model']}, {cores_in_words(record.machine['usable_cores'])}"]
    versions = record.versions
    parts += [f"{name} {versions[name].split('+')[0]}" for name in ("python", "torch", "horovod") if versions.get(name)]
    parts += filter(None, [where(record)])
    other = [policy for policy in wait_policies(record) if not waiting.bounded(policy)]
    if other and not record.on_gpu:
        parts.append(f"OpenMP wait policy: {' and '.join(other)}")
    return "; ".join(parts)


def wait_policies(record: Record) -> list[str]:
    """How long the OpenMP threads of the ranks spin, each policy once. Records older than this setting do not
    contain it: then what the user had set applied, or the default of the runtime."""
    given = record.environment.get("variables") or {}
    before = " ".join(f"{name}={given[name]}" for name in sorted(waiting.SETTINGS & set(given))) or waiting.DEFAULT
    return sorted({(part.facts or {}).get("waiting_threads", before) for part in record.samples})


def where(record: Record) -> str:
    names = f"{record.layout} ({', '.join(node.name for node in record.nodes)})" if record.several_machines else ""
    return ", ".join(filter(None, [names, record.network]))


def differing_nodes(record: Record) -> list[str]:
    """How the machines of a run differ from its first: a sentence each."""
    found = []
    for node in record.nodes[1:]:
        first, other = (of_environment(each) for each in (record.environment, node.environment))
        apart = [f"{name} is {other[name]} and not {first[name]}" for name in first if other[name] != first[name]]
        found += [f"{node.name} differs from {record.nodes[0].name}: {', '.join(apart)}"] if apart else []
    return found


def of_environment(environment: dict) -> dict:
    machine, source = environment.get("machine") or {}, environment.get("source_sha256")
    gpus = Counter(gpu["name"] for gpu in environment.get("devices") or [])
    return {
        "code": source and source[:8],
        "processor": machine.get("cpu_model"),
        "cores": machine.get("usable_cores"),
        "GPUs": " and ".join(f"{count}× {name}" for name, count in gpus.items()) or "none",
        "driver": environment.get("driver_version"),
        **{name: (environment.get("versions") or {}).get(name) for name in COMPUTE},
    }


def used_gpus(record: Record) -> list[str]:
    """The names of the GPUs that a run used; without samples, of the first ones of the machine."""
    if not record.on_gpu:
        return []
    used = {(device.get("uuid") or "").removeprefix("GPU-") for part in record.samples for device in part.devices}
    found = [gpu["name"] for gpu in record.gpus if (gpu.get("uuid") or "").removeprefix("GPU-") in used - {""}]
    return found or [gpu["name"] for gpu in record.gpus[: record.config.num_devices]]


def stand_in(record: Record) -> str:
    most = record.config.num_devices
    if record.on_gpu:
        used = used_gpus(record)
        return f"GPU: {len(used) or most}× {' and '.join(dict.fromkeys(used)) or 'name not recorded'}"
    if most == 1:
        return "CPU: no GPU is used"
    return f"CPU: no GPU is used, {describe_emulation(record.config.mode, most)}"


def workload(record: Record) -> str:
    """As in ``resnet18, digits 16 px, fp32`` or ``gpt 2×64, stdlib 64 bytes, bf16``."""
    config = record.config
    return f"{model_of(config)}, {data_of(config)}, {config.precision or 'precision not recorded'}"


def model_of(config: Model) -> str:
    return f"{config.model} {config.layers}×{config.width}" if config.layers else config.model


def data_of(config: Data) -> str:
    size = f" {config.image_size} px" if config.image_size else ""
    return f"{config.data}{f' {config.context} bytes' if config.context else size}"


def memory_cell(devices: list[dict]) -> str:
    """The peak of each device from the best source it has: never summed, never averaged."""
    source = best_source(devices)
    if source is None:
        return "not known"
    return f"{source} " + " ".join(f"{d[source]:.2f}" for d in devices)


def energy_cell(records: list[Record]) -> str:
    """Joules per example with three digits, the mean over runs; empty where one of them did not record it."""
    found = [joules_per_example(record) for record in records]
    return "" if None in found else f"{statistics.fmean(found):#.3g}".rstrip(".")


def best_source(devices: list[dict]) -> str | None:
    """The first of MEMORY_ORDER by which every device's peak is known."""
    return next((s for s in MEMORY_ORDER if all(d.get(s) is not None for d in devices)), None)


def devices_cell(record: Record) -> str:
    """The number of devices; for ranks that share a GPU also that they do."""
    count = record.num_devices if record.ok else record.config.num_devices
    return f"{count} on one GPU" if record.config.share_gpu else str(count)


def options_cells(records: list[Record]) -> list[str]:
    """For each run, the options in which it differs from most of the runs that got their options as it did
    (TORCH_DEFAULTS=1 or not): ``fp16``, ``channels_last=0``. Precision is named in every row if any differ in it."""
    tables = [shown_options(record) for record in records]
    kinds = [(record.config.device, record.config.plain) for record in records]
    usual = {
        kind: {name: most_common([t[name] for t, k in zip(tables, kinds, strict=True) if k == kind], UNSET[name])
               for name in tables[0]}
        for kind in set(kinds)
    }  # fmt: skip
    precisions, cells = {table["precision"] for table in tables}, []
    for table, kind in zip(tables, kinds, strict=True):
        first = [table["precision"] or "unknown"] if len(precisions) > 1 else []
        rest = [f"{name}={option_value(value)}" for name, value in table.items()
                if name != "precision" and value != usual[kind][name]]  # fmt: skip
        cells.append(" ".join(first + rest))
    return cells


def shown_options(record: Record) -> dict:
    """The options of the work and of the program that no other column shows."""
    config = record.config
    found = {name: getattr(config, name) for name in names(*WORK, *PROGRAM) if name not in IN_COLUMNS}
    if config.profile_kept:
        found["profile"] = "torch"
    if config.launcher in MODES[config.mode].launchers[:1]:
        found["launcher"] = UNSET["launcher"]
    return found


def most_common(values: list, otherwise):
    """The value of most; of several that are as frequent, ``otherwise`` if it is one of them."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value == otherwise))


def device_label(record: Record, rank: int, device: dict) -> str:
    return f"process {rank}" if device["device"] == "cpu" else f"rank {rank}, {device['device']}"


def memory_sentences(record: Record) -> list[str]:
    """Notes on memory by purpose: its source, what is unknown, and under DataParallel how much more device 0
    holds."""
    found = [device["memory_parts"] for part in record.samples for device in part.devices if "memory_parts" in device]
    if not found:
        return []
    said = [f"memory by category: {found[0]['source']}"] if "gib" in found[0] else []
    said += dict.fromkeys(note for parts in found for note in parts["notes"])
    if record.mode.one_process and len(found) > 1 and all("gib" in parts for parts in found):
        said.append(memory_difference(record.config.mode, found[0]["gib"], found[1]["gib"]))
    return said


def memory_difference(mode: str, first: dict[str, float], second: dict[str, float]) -> str:
    """How much more one device holds than another. first, second: GiB by purpose.

    >>> memory_difference("dp", {"weights": 1.0, "activations": 4.0}, {"activations": 4.0, "replicas": 0.5})
    'dp: device 0 holds 0.500 GiB more than device 1: weights +1.000, replicas -0.500'
    """
    more = surplus(first, second)
    each = ", ".join(f"{kind} {size:+.3f}" for kind, size in more.items() if abs(size) >= 0.0005)
    return f"{mode}: device 0 holds {sum(more.values()):.3f} GiB more than device 1: {each}"


def row(record: Record) -> list[str]:
    """The cells of one run: mode, devices, processes × threads, global batch, throughput, step ms, steps, memory."""
    config, devices = record.config, devices_cell(record)
    name = config.mode + (" tuned" if config.tuned else "") + (" plain" if config.plain else "")
    name += f" INJECT={config.mistake}" if config.mistake != "none" else ""
    name += f", {config.accumulate} passes" if record.mode.max_devices == 1 and config.accumulate > 1 else ""
    name += f", interrupted {len(rows)} ×" if (rows := record.interruptions) else ""
    if record.status == "failed":
        return [name, devices, "", "", f"failed: {record.failure['kind']}", "", "", ""]
    if record.status == "evaluated":
        score = f"{record.workload.metrics[0].label} {record.top1:.4f}"
        return [f"{name}, only validated: {score}", devices, "", "", "", "", "", ""]
    step = record.step_time
    return [
        f"{name}, {LABEL}" if disturbances_of(record) else name,
        devices,
        f"{record.world_size} × {record.samples[0].threads}",
        str(record.global_batch),
        f"{record.throughput:.1f}",
        f"{step['median'] * 1e3:.1f} [{step['p5'] * 1e3:.1f}–{step['p95'] * 1e3:.1f}]",
        str(step["n"]),
        memory_cell(record.peak_memory),
    ]


def epoch_line(row: dict, workload) -> str:
    """An epoch, or only a validation, in one line. row: as in the record."""
    labels = {"train_loss": "training loss"} | {f"train_{m.key}": f"training {m.label}" for m in workload.metrics}
    labels |= {"loss": "loss"} | {m.key: m.label for m in workload.metrics}
    labels |= {f"{name}_{m.key}": f"{name.upper()} {m.label}" for name in AVERAGES for m in workload.metrics}
    values = [(label, row[key]) for key, label in labels.items() if key in row]
    parts = [f"{label} {'not finite' if value is None else format(value, '.4f')}" for label, value in values]
    parts += [f"{row['skipped_steps']} steps skipped"] if row.get("skipped_steps") else []
    seconds = row["elapsed_s"]
    if row["epoch"]:
        return f"epoch {row['epoch']}: {', '.join([*parts, f'{seconds:.1f} s'])}"
    examples = f"{row['images']} {workload.batched}"  # older records do not contain the seconds of a validation
    speed = f" in {seconds:.1f} s ({row['images'] / seconds:.0f} {workload.batched}/s)" if seconds else ""
    return f"validation: {', '.join([*parts, examples + speed])}"


def staging_sentence(record: Record) -> str:
    """How long the ranks waited for data from a URL; "" for other data and older records."""
    known = [part.moments for part in record.samples if "data_ready" in part.moments]
    if "://" not in record.config.data or not known:
        return ""
    seconds = max(moments["data_ready"] - moments["joined"] for moments in known)
    return f"the data were ready after {seconds:.1f} s: copied from the URL, or found in the cache"


def interrupted(record: Record) -> str:
    rows = record.interruptions
    if not rows:
        return ""
    lost, repeated = (sum(row[name] for row in rows) for name in ("seconds_lost", "steps_repeated"))
    return (
        f"interrupted {len(rows)} × ({lost:.1f} s lost, {repeated} steps repeated, from {rows[0]['devices_before']} "
        f"devices to {rows[-1]['devices_after']}): do not compare its times"
    )


def flops_per_example(record: Record) -> tuple[float | None, float | None]:
    """Of a forward and backward pass, and with the activations that checkpointing computes again. None: not counted, or
    no checkpointing. Records of gpt before 0.2 have the first per token."""
    facts = (record.samples[0].facts or {}) if record.samples else {}
    per_token = facts.get("flops_per_token")
    model = facts.get("flops_per_example", per_token and per_token * record.workload.per_example)
    return model, facts.get("hardware_flops_per_example")


def peak_tflops(record: Record) -> tuple[float | None, str]:
    """The peak of one device in the run's precision, and its source."""
    if record.config.peak_tflops:
        return record.config.peak_tflops, "PEAK_TFLOPS"
    peaks = {name: peak_of(name, record.config.precision) for name in used_gpus(record)}
    if not peaks or not all(peaks.values()):
        return None, ""
    return min(peaks.values()), f"{' and '.join(peaks)}, {record.config.precision}, data sheet"


def utilization(record: Record, throughput: float | None = None) -> dict[str, float]:
    """TFLOP/s of one device as "tflops"; with its peak "mfu" and, with activation checkpointing, "hfu". Empty if the
    FLOPs were not counted. throughput: by default the record's."""
    (model, hardware), throughput = flops_per_example(record), throughput or record.throughput
    if not model or not throughput:
        return {}
    devices, peak = 1 if record.config.share_gpu else record.num_devices, peak_tflops(record)[0]
    flops = formulas.model_flops_per_s(throughput / record.workload.per_example, model, devices)
    found = {"tflops": flops / 1e12}
    if peak:
        found["mfu"] = formulas.model_flops_utilization(flops, peak * 1e12)
    if peak and hardware:
        found["hfu"] = found["mfu"] * hardware / model
    return found


def flops_cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if name == "tflops" else f"{100 * value:.1f} %"


def flops_sentence(record: Record) -> str:
    """What TFLOP/s and MFU of the table are made from; "" without them."""
    if not utilization(record):
        return ""
    (model, hardware), (peak, source) = flops_per_example(record), peak_tflops(record)
    said = f"{model / 1e9:.4g} GFLOP per example, forward and backward"
    said += f" ({hardware / 1e9:.4g} with the recomputed activations, for HFU)" if hardware else ""
    against = "MFU is unknown: set PEAK_TFLOPS to the peak of one device"
    against = f"MFU is a share of {peak:g} TFLOP/s ({source})" if peak else against
    return f"{said}, counted by torch without elementwise operations, norms and optimizer; {against}"


def did_not_fit(failure: dict) -> bool:
    """Whether a run failed because a device had too little memory for it. failure: as in its record, which may be older
    than ``out_of_memory``; the errors of some libraries have no separate type.

    >>> did_not_fit({"kind": "raised", "message": "rank 0 raised OutOfMemoryError: CUDA out of memory. Tried to …"})
    True
    """
    said = failure["kind"] == "raised" and bool(NO_MEMORY.search(failure["message"]))
    return failure.get("out_of_memory", said)


def oom_notes(failed: list[Record], good: list[Record]) -> list[str]:
    """A sentence for each arm that did not fit into the memory of a device, at all or in one pass."""
    found = []
    for name in dict.fromkeys(record.program for record in failed if record.failure and did_not_fit(record.failure)):
        config = next((record.config for record in good if record.program == name), None)
        if config is None:
            found.append(f"{name} did not fit into device memory and is not included: use a smaller BATCH")
        elif config.accumulate > 1:
            found.append(
                f"{name} did not fit into a device's memory in one pass: it takes its step in {config.accumulate} "
                f"passes of {config.per_device_batch}"
            )
    return found


def ratios(record: Record, base: Record) -> tuple[float, float]:
    return record.throughput / base.throughput, record.median_throughput / base.median_throughput


def ratio(record: Record, base: Record) -> str:
    """The speedup by the median steps, with a question mark where the means contradict it."""
    if not (record.ok and base.ok):
        return ""
    return f"{ratios(record, base)[1]:.2f}" + (" ?" if contradiction(record, base) else "")


def contradiction(record: Record, base: Record) -> str:
    """A sentence where means and medians disagree about which of two runs is faster; else ""."""
    by_all, by_median = ratios(record, base)
    if (by_all - 1) * (by_median - 1) >= 0:
        return ""
    a, b = record.program, base.program
    return (
        f"these runs do not show which of {a} and {b} is faster: the throughput of {a} is {by_all:.2f} × that of {b} "
        f"over all steps, but {by_median:.2f} × by the median step"
    )


def clocks_apart(records: list[Record]) -> list[str]:
    found = [mhz for record in records if record.ok and (mhz := clock_mhz(record))]
    if not found or max(found) <= CLOCKS * min(found):
        return []
    what = "GPUs'" if records[0].on_gpu else "CPU's"
    return [f"the {what} clock was between {min(found):.0f} and {max(found):.0f} MHz: the runs differ in clock rate"]


def clock_mhz(record: Record) -> float | None:
    """Of GPUs the median over all samples; of a CPU the fastest core at the end of the timed steps; None if unknown."""
    if record.on_gpu:
        columns = [device["timeline"].get("sm_clock_mhz", []) for part in record.samples for device in part.devices]
        return statistics.median(mhz) if (mhz := [x for column in columns for x in column if x]) else None
    return max(((part.load or {}).get("cpu_mhz") or 0.0 for part in record.samples), default=0.0) or None


def cautions(records: list[Record]) -> list[str]:
    """What to know before throughputs are compared: disturbed arms, clocks that differ."""
    return disturbed(records) + clocks_apart(records)


def cautions_of_single_runs(record: Record, others: list[Record]) -> list[str]:
    """The same for single runs; also machines that differ, uneven steps, and contradictions."""
    found = cautions([record, *others]) + differing_nodes(record)
    for each in filter(lambda each: each.ok, [record, *others]):
        mean_over_median = each.median_throughput / each.throughput
        if mean_over_median > UNEVEN:
            longest = max(max(part.step_time_s) for part in each.samples)
            found.append(
                f"{each.config.mode} had uneven steps: the mean is {mean_over_median:.2f} × the median (longest: "
                f"{longest:.2f} s), and {each.workload.units}/s is computed from the mean: repeat the run before you "
                "compare"
            )
    said = [contradiction(other, record) for other in others if record.ok and other.ok]
    return found + [sentence for sentence in said if sentence]
