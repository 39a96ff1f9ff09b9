"""Records as data: pandas frames, and tables in CSV, Parquet and Markdown made from them.

In: records as ``load`` gives them. Out: a frame with one row per record (``runs_frame``), or one row per device and
source of memory (``memory_frame``). Columns have the names of the record, joined by ``_`` where they lie deeper, with
their units: ``step_time_s_median`` is ``summary.step_time_s.median``. A value that a record does not have is missing
(NA), never 0. CSV and Parquet hold every column; Markdown holds those that fit a page.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from bench import files, formulas, spreadsheet
from bench.config import options
from bench.config.fields import base_type
from bench.config.options import FIELDS
from bench.config.workloads import WORKLOADS
from bench.errors import UserError
from bench.record.describe import MEMORY_ORDER
from bench.record.view import Record

FORMATS = ("csv", "parquet", "md")
DTYPES = {int: "Int64", bool: "boolean", float: "float64", str: "string"}
SOURCES = (*MEMORY_ORDER, "rss_hwm")
LABELS = ("run_id", *options.LABELS)  # first in every table

METRICS = {f"accuracy.{metric.key}": float for info in WORKLOADS.values() for metric in info.metrics}
# After the labels, by their place in the record. Those of config come from RunConfig, between these two groups.
HEAD = {"run_id": str} | {name: base_type(f) for name, f in options.LABELS.items()} | {"status": str, "started_at": str}
SETTLED = {
    "topology.world_size": int, "topology.devices_per_process": int, "topology.global_batch": int,
    "topology.threads_total": int, "topology.loader_workers_total": int,
    "environment.machine.cpu_model": str, "environment.machine.usable_cores": int, "environment.machine.ram_gib": float,
    "environment.driver_version": str, "environment.versions.python": str, "environment.versions.torch": str,
    "environment.versions.horovod": str, "environment.versions.cuda": str, "environment.versions.nccl": str,
    "environment.git.revision": str, "environment.git.dirty": bool,
    **METRICS, "failure.kind": str, "failure.rank": int,
}  # fmt: skip
RENAMED = {"kind": "failure_kind", "rank": "failure_rank", "revision": "git_revision", "dirty": "git_dirty"}
MEASURED = {
    "throughput_per_s": float, "median_throughput_per_s": float, "others_cpu_share": float, "steal_share": float,
    "foreign_gpu_processes": int, "gpu_slowed_share": float, "gpu_power_capped_share": float,
    "step_time_s.n": int, "step_time_s.mean": float, "step_time_s.median": float, "step_time_s.p5": float,
    "step_time_s.p95": float, "data_wait_s.median": float, "data_wait_s.p95": float,
    "command_to_first_timed_step_s": float,
}  # fmt: skip
PLACE = {"rank", "node", "device"}  # of an entry of peak_memory_gib: whose it is
TIMED = ("throughput_", "median_throughput_", "step_time_s_")
OPTIONS = [name for name in FIELDS if name not in HEAD]

# What fits a page, in Markdown; of these, what is equal in every record is said once, above the table.
PAGE = (
    "device", "gpu_names", "cpu_model", "torch_version", "network", *options.LABELS, "mode", "num_devices", "status",
    "model", "data", "image_size", "per_device_batch", "global_batch", "precision", "throughput_per_s",
    "step_time_s_median", "step_time_s_p5", "step_time_s_p95", "peak_memory_gib_nvml_process_max",
    "peak_memory_gib_nvml_device_max", "peak_memory_gib_torch_reserved_max", "peak_memory_gib_pss_max",
)  # fmt: skip
ALWAYS = ("mode", "num_devices", "throughput_per_s", "step_time_s_median")


def runs_frame(records: list[Record]):
    """One row per record, in their order.

    throughput_per_s and step_time_s of a profiled run are missing: the profiler slows it, and they are no
    result. phase_time_s_<phase>_median: over the timed steps of all ranks. peak_memory_gib_<source>_max: the fullest
    device's.
    """
    rows = [row(record) for record in records]
    names = dict.fromkeys(name for found in rows for name in found)
    last = sorted((name for name in names if name.startswith(("phase_time_s_", "peak_memory_gib_"))), key=place)
    columns = [name for name in names if name not in last] + last
    return typed(rows, columns or list(row(EMPTY)), types())


EMPTY = {"config": {}, "topology": {}, "environment": {}, "samples": [], "summary": {}}


def memory_frame(records: list[Record]):
    """The long form: one row per record, device and source, with its peak in GiB; never summed over devices."""
    rows = [
        {name: head(record)[name] for name in LABELS}
        | {"mode": record["config"].get("mode"), "rank": device["rank"], "device": device["device"]}
        | {"node": node_of(record, device)}
        | {"source": source, "peak_memory_gib": device[source]}
        for record in records
        for device in record["summary"].get("peak_memory_gib", [])
        for source in sorted(set(device) - PLACE, key=source_place)
        if device[source] is not None
    ]
    columns = [*LABELS, "mode", "rank", "node", "device", "source", "peak_memory_gib"]
    return typed(
        rows, columns, types() | {"rank": int, "node": str, "device": str, "source": str, "peak_memory_gib": float}
    )


def node_of(record: Mapping, device: dict) -> str | None:
    return record["nodes"][device["node"]].get("name") if "node" in device else None


def row(record: Mapping) -> dict:
    found = head(record)
    config = record["config"]
    found |= {name: config.get(name) for name in OPTIONS}
    for path in SETTLED:
        found[column_of(path)] = at(record, path)
    found |= {"nodes": len(record.get("nodes") or []) or None, "network": at(record, "network.label")}
    gpus = [device.get("name") or "" for device in record["environment"].get("devices") or []]
    found["gpu_names"] = "; ".join(gpus) or None
    for path in MEASURED:
        found[path.replace(".", "_")] = at(record["summary"], path)
    if config.get("profile"):
        found |= {name: None for name in found if name.startswith(TIMED)}
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
    """``at(record, "environment.git.dirty")``; None where anything on the way is absent."""
    for name in path.split("."):
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def column_of(path: str) -> str:
    """The column's name for a place in the record.

    >>> column_of("environment.git.dirty"), column_of("environment.versions.torch"), column_of("topology.world_size")
    ('git_dirty', 'torch_version', 'world_size')
    """
    room, _, name = path.rpartition(".")
    return f"{name}_version" if room.endswith("versions") else RENAMED.get(name, name)


COLUMN_OF = {path: column_of(path) for path in SETTLED}


def types() -> dict[str, type]:
    """Column -> type, of all columns that are not a float."""
    options = {name: base_type(f) for name, f in FIELDS.items()}
    settled = {COLUMN_OF[path]: kind for path, kind in SETTLED.items()}
    measured = {path.replace(".", "_"): kind for path, kind in MEASURED.items()}
    return options | settled | measured | HEAD | {"gpu_names": str, "nodes": int, "network": str}


def place(column: str) -> tuple:
    """The order of the columns that depend on the records: phases, then memory by source."""
    source = column.removeprefix("peak_memory_gib_").removesuffix("_max")
    return (column.startswith("peak_memory_gib_"), *source_place(source))


def source_place(source: str) -> tuple:
    """The order of memory sources: those of SOURCES, then the rest by name."""
    return SOURCES.index(source) if source in SOURCES else len(SOURCES), source


def typed(rows: list[dict], columns: list[str], kinds: dict[str, type]):
    """A frame whose columns have their type even where values are missing or there is no row at all."""
    import pandas as pd

    return pd.DataFrame(
        {
            name: pd.array([found.get(name) for found in rows], dtype=DTYPES[kinds[name]])
            if kinds.get(name, float) is not float
            else pd.Series([found.get(name) for found in rows], dtype="float64")
            for name in columns
        }
    )


def write_table(records: list[Record], path: str | Path | None, form: str | None = None, memory: bool = False) -> None:
    """Write the records' table to ``path``, or to standard output where it is None.

    form: csv, parquet or md; None: by the file's name, and md without a file. memory: the long table of memory by
    device instead. A file is written whole or not at all, and one that exists is never overwritten. Raises UserError
    on an unknown form, a file that exists or cannot be written, Parquet without a file, or without pyarrow.
    """
    form = form or (Path(path).suffix.removeprefix(".") if path else "md")
    if form not in FORMATS:
        raise UserError(f"unknown FORMAT={form}: choose one of {', '.join(FORMATS)}")
    if form == "parquet" and path is None:
        raise UserError("a Parquet table is binary: name a file, as in TO=table.parquet")
    frame = memory_frame(records) if memory else runs_frame(records)
    if form == "parquet":
        save(Path(path), lambda file: to_parquet(frame, file))
        return
    text = to_csv(frame) if form == "csv" else markdown(frame, None if memory else PAGE)
    if path is None:
        sys.stdout.write(text)
        return
    save(Path(path), lambda file: file.write_text(text, encoding="utf-8"))


def to_csv(frame) -> str:
    """A frame as CSV. A text that a spreadsheet would take for a formula begins with '."""
    texts = frame.select_dtypes("string")
    safe = texts.apply(lambda column: column.map(spreadsheet.cell, na_action="ignore"))
    return frame.assign(**safe).to_csv(index=False, lineterminator="\n")


def to_parquet(frame, path: Path) -> None:
    """Write a frame as Parquet. Raises UserError without pyarrow."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise UserError("Parquet needs pyarrow: `pip install pyarrow`, or use FORMAT=csv") from None
    frame.to_parquet(path, index=False, engine="pyarrow")


def save(path: Path, write) -> None:
    """Let ``write`` fill a temporary file beside ``path``, and give it that name. Raises UserError."""
    if path.exists():
        raise UserError(f"{path} is there already and is not overwritten: name another file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.written_whole(path) as temporary:
            write(temporary)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None


def markdown(frame, columns=None) -> str:
    """A frame as a Markdown table. columns: those that may be shown, where the frame has a value in them; of these,
    the ones that are equal in all rows are said once, above the table."""
    shown = [name for name in columns or frame.columns if name in frame.columns and frame[name].notna().any()]
    alike = []
    if columns and len(frame) > 1:
        alike = [n for n in shown if n not in ALWAYS and frame[n].notna().all() and frame[n].nunique() == 1]
    lines = [f"{len(frame)} {'row' if len(frame) == 1 else 'rows'}" + (": " if alike else "")]
    lines[0] += ", ".join(f"{name} {cell(frame[name].iloc[0])}" for name in alike)
    shown = [name for name in shown if name not in alike]
    if not shown:
        return lines[0] + "\n"
    numbers = [str(frame[name].dtype) in ("Int64", "float64") for name in shown]
    lines += ["", line(shown), line("---:" if number else "---" for number in numbers)]
    lines += [line(map(cell, values)) for values in frame[shown].itertuples(index=False, name=None)]
    return "\n".join(lines) + "\n"


def line(cells) -> str:
    return "| " + " | ".join(cells) + " |"


def cell(value) -> str:
    """A value of a Markdown table: five significant digits, nothing where it is missing.

    >>> cell(0.123456), cell(1234.5678), cell(12345678.0), cell(float("nan")), cell(7), cell("a|b")
    ('0.12346', '1234.6', '12345678', '', '7', 'a\\\\|b')
    """
    import pandas as pd

    if pd.isna(value):
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1e5 else f"{value:.5g}"
    return str(value).replace("|", "\\|").replace("\n", " ")
