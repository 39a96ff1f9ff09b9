"""Records as pandas frames, and as tables in CSV, Parquet and Markdown.

Columns have the names of the record, with their units, joined by ``_`` where they are nested. A value that a record
does not have is missing (NA), never 0. CSV and Parquet hold every column, Markdown those that fit a page."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from bench import files, formulas, spreadsheet
from bench.config import options
from bench.config.fields import base_type
from bench.config.options import FIELDS
from bench.config.workloads import WORKLOADS
from bench.errors import UserError
from bench.record.describe import MEMORY_ORDER, utilization
from bench.record.summary import joules_per_example
from bench.record.view import Record
from bench.report.markdown import table

FORMATS = ("csv", "parquet", "md")
DTYPES = {int: "Int64", bool: "boolean", float: "float64", str: "string"}
EMPTY = {"config": {}, "topology": {}, "environment": {}, "samples": [], "summary": {}}
SOURCES = (*MEMORY_ORDER, "rss_hwm")
LABELS = ("run_id", *options.LABELS)  # first in every table
VERSIONS = ("python", "torch", "horovod", "cuda", "nccl")
HEAD = {"run_id": str} | {name: base_type(f) for name, f in options.LABELS.items()} | {"status": str, "started_at": str}


def named(place: str, **kinds: type) -> dict[str, tuple[str, type]]:
    return {name: (f"{place}.{name}", kind) for name, kind in kinds.items()}


# Column -> its place in the record, and its type: after the labels and the options of the run, in this order.
COLUMNS = {
    **named("topology", world_size=int, devices_per_process=int, global_batch=int, threads_total=int,
            loader_workers_total=int),
    **named("environment.machine", cpu_model=str, usable_cores=int, ram_gib=float),
    **named("environment", driver_version=str),
    **{f"{name}_version": (f"environment.versions.{name}", str) for name in VERSIONS},
    "git_revision": ("environment.git.revision", str), "git_dirty": ("environment.git.dirty", bool),
    **named("accuracy", **{metric.key: float for info in WORKLOADS.values() for metric in info.metrics}),
    "failure_kind": ("failure.kind", str), "failure_rank": ("failure.rank", int),
    "nodes": ("nodes", int), "network": ("network.label", str), "gpu_names": ("environment.devices", str),
    **named("summary", throughput_per_s=float, median_throughput_per_s=float, others_cpu_share=float, steal_share=float,
            foreign_gpu_processes=int, gpu_slowed_share=float, gpu_power_capped_share=float),
    "step_time_s_n": ("summary.step_time_s.n", int),
    **{f"step_time_s_{name}": (f"summary.step_time_s.{name}", float) for name in ("mean", "median", "p5", "p95")},
    **{f"data_wait_s_{name}": (f"summary.data_wait_s.{name}", float) for name in ("median", "p95")},
    **named("summary", command_to_first_timed_step_s=float),
}  # fmt: skip
PLACE = {"rank", "node", "device"}  # columns that identify an entry of peak_memory_gib
FLOPS = {"tflops": "tflops_per_device", "mfu": "mfu", "hfu": "hfu"}  # columns by ``describe.utilization``
TIMED = ("throughput_", "median_throughput_", "step_time_s_")
OPTIONS = [name for name in FIELDS if name not in HEAD]

# Columns that fit a page, in Markdown; of these, those that are equal in every record are given once, above the table.
PAGE = (
    "device", "gpu_names", "cpu_model", "torch_version", "network", *options.LABELS, "mode", "num_devices", "status",
    "model", "data", "image_size", "per_device_batch", "global_batch", "precision", "throughput_per_s",
    "step_time_s_median", "step_time_s_p5", "step_time_s_p95", "peak_memory_gib_nvml_process_max",
    "peak_memory_gib_nvml_device_max", "peak_memory_gib_torch_reserved_max", "peak_memory_gib_pss_max",
)  # fmt: skip
ALWAYS = ("mode", "num_devices", "throughput_per_s", "step_time_s_median")


def runs_frame(records: list[Record]):
    """One row per record, in their order.

    throughput_per_s and step_time_s of a profiled run are missing, because the profiler slows it.
    phase_time_s_<phase>_median: over the timed steps of all ranks. peak_memory_gib_<source>_max: the fullest device's.
    """
    rows = [row(record) for record in records]
    names = dict.fromkeys(name for found in rows or [row(EMPTY)] for name in found)
    return typed(rows, sorted(names, key=place))


def memory_frame(records: list[Record]):
    """The long form: one row per record, device and source, with its peak in GiB; never summed over devices."""
    rows = [
        {name: head(record)[name] for name in LABELS}
        | {"mode": record["config"].get("mode"), "rank": device["rank"], "device": device["device"]}
        | {"node": record["nodes"][device["node"]].get("name") if "node" in device else None}
        | {"source": source, "peak_memory_gib": device[source]}
        for record in records
        for device in record["summary"].get("peak_memory_gib", [])
        for source in sorted(set(device) - PLACE, key=source_place)
        if device[source] is not None
    ]
    kinds = {"rank": int, "node": str, "device": str, "source": str, "peak_memory_gib": float}
    return typed(rows, [*LABELS, "mode", *kinds], kinds)


def row(record: Record) -> dict:
    config = record["config"]
    found = head(record) | {name: config.get(name) for name in OPTIONS}
    found |= {column: at(record, path) for column, (path, _) in COLUMNS.items()}
    found["nodes"] = len(found["nodes"] or []) or None
    found["gpu_names"] = "; ".join(device.get("name") or "" for device in found["gpu_names"] or []) or None
    flops = {}
    if config.get("profile"):
        found |= {name: None for name in found if name.startswith(TIMED)} | {"joules_per_example": None}
    else:
        found["joules_per_example"] = joules_per_example(record)
        flops = utilization(record) if config and record.ok else {}
    found |= {column: flops.get(name) for name, column in FLOPS.items()}
    for phase in dict.fromkeys(name for part in record["samples"] for name in part.get("phase_time_s", {})):
        times = [t for part in record["samples"] for t in part.get("phase_time_s", {}).get(phase, [])]
        found[f"phase_time_s_{phase}_median"] = formulas.percentile(times, 50) if times else None
    for device in record["summary"].get("peak_memory_gib", []):
        for source in set(device) - PLACE:
            name, value = f"peak_memory_gib_{source}_max", device[source]
            found[name] = max((x for x in (found.get(name), value) if x is not None), default=None)
    return found


def head(record: Mapping) -> dict:
    return {name: record["config"].get(name) if name in record["config"] else record.get(name) for name in HEAD}


def at(values, path: str):
    """``at(record, "environment.git.dirty")``; None if any part of the path is absent."""
    for name in path.split("."):
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def place(column: str) -> tuple:
    """Sort key: the common columns, in their order; then phases by name; then memory by source."""
    if column.startswith("peak_memory_gib_"):
        return 2, *source_place(column.removeprefix("peak_memory_gib_").removesuffix("_max"))
    return (1, 0, column) if column.startswith("phase_time_s_") else (0,)


def source_place(source: str) -> tuple:
    """Sort key: memory sources in the order of SOURCES, then the rest by name."""
    return SOURCES.index(source) if source in SOURCES else len(SOURCES), source


def typed(rows: list[dict], columns: list[str], more: Mapping[str, type] = MappingProxyType({})):
    """A frame whose columns have their type even if values are missing or there are no rows. more: column -> type."""
    import pandas as pd

    kinds = {name: base_type(f) for name, f in FIELDS.items()}
    kinds |= {name: kind for name, (_, kind) in COLUMNS.items()} | HEAD | more
    frame = pd.DataFrame({name: pd.Series([found.get(name) for found in rows], dtype=object) for name in columns})
    return frame.astype({name: DTYPES[kinds.get(name, float)] for name in columns})


def write_table(records: list[Record], path: str | Path | None, form: str | None = None, memory: bool = False) -> None:
    """Write the records' table to ``path``, or to standard output.

    form: csv, parquet or md; None: by the file's name, and md without a file. memory: write ``memory_frame``. The
    write is atomic. Raises UserError on an unknown form, a file that exists or cannot be written, Parquet without a
    file, or without pyarrow.
    """
    form = form or (Path(path).suffix.removeprefix(".") if path else "md")
    if form not in FORMATS:
        raise UserError(f"unknown FORMAT={form}: choose one of {', '.join(FORMATS)}")
    if form == "parquet" and path is None:
        raise UserError("a Parquet table is binary: name a file, as in OUT=table.parquet")
    frame = memory_frame(records) if memory else runs_frame(records)
    if form == "parquet":
        save(Path(path), lambda file: to_parquet(frame, file))
        return
    if form == "csv":
        texts = frame.select_dtypes("string").apply(lambda column: column.map(spreadsheet.cell, na_action="ignore"))
        text = frame.assign(**texts).to_csv(index=False, lineterminator="\n")
    else:
        text = markdown(frame, None if memory else PAGE)
    if path is None:
        sys.stdout.write(text)
    else:
        save(Path(path), lambda file: file.write_text(text, encoding="utf-8"))


def to_parquet(frame, path: Path) -> None:
    """Raises UserError without pyarrow."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise UserError("Parquet needs pyarrow: `pip install pyarrow`, or use FORMAT=csv") from None
    frame.to_parquet(path, index=False, engine="pyarrow")


def save(path: Path, write, replace: bool = False) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then rename it. replace: an older file. Raises UserError."""
    if path.exists() and not replace:
        raise UserError(f"{path} already exists: choose another file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.atomic_write(path) as temporary:
            write(temporary)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None


def markdown(frame, columns=None) -> str:
    """A frame as a Markdown table. columns: columns to show, if the frame has a value in them; those that are equal in
    all rows are given once, above the table."""
    shown = [name for name in columns or frame.columns if name in frame.columns and frame[name].notna().any()]
    alike = []
    if columns and len(frame) > 1:
        alike = [n for n in shown if n not in ALWAYS and frame[n].notna().all() and frame[n].nunique() == 1]
    title = f"{len(frame)} {'row' if len(frame) == 1 else 'rows'}" + (": " if alike else "")
    title += ", ".join(f"{name} {cell(frame[name].iloc[0])}" for name in alike)
    shown = [name for name in shown if name not in alike]
    if not shown:
        return f"{title}\n"
    head = [(name, str(frame[name].dtype) in ("Int64", "float64")) for name in shown]
    rows = [map(cell, values) for values in frame[shown].itertuples(index=False, name=None)]
    return f"{title}\n\n{table(head, rows)}"


def cell(value) -> str:
    """Five significant digits; empty if the value is missing.

    >>> cell(0.123456), cell(1234.5678), cell(12345678.0), cell(float("nan")), cell(7), cell("a")
    ('0.12346', '1234.6', '12345678', '', '7', 'a')
    """
    import pandas as pd

    if pd.isna(value):
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1e5 else f"{value:.5g}"
    return str(value)
