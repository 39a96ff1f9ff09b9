"""Put the records of a machine's folder into one file per suite: ``records.jsonl.gz``, with ``records.csv`` beside it.

    python -m tests.validation.pack results/reference/MACHINE

A suite's folder keeps its pictures. Single runs of the machine go into ``runs.jsonl.gz`` and ``runs.csv``. The folders
of the runs are removed, with their logs; of a failed run the end of the logs stays in its line. All commands read both
forms.
"""

import argparse
import gzip
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import spreadsheet
from bench.errors import UserError
from bench.foreign import record as scripts
from bench.predict.emulation import record as emulations
from bench.record import packed
from bench.record.describe import MEMORY_ORDER
from bench.record.read import is_of_a_run, load
from bench.record.view import Record
from bench.tasks.network import record as networks

LOADERS = {networks.NAME: networks.load, emulations.NAME: emulations.load, scripts.NAME: scripts.load}
TAIL = 40  # lines of each log of a failed run
COLUMNS = ("run_id", "status", "started_at", "program", "round", "seed", "mode", "device", "num_devices", "model",
           "per_device_batch", "throughput", "unit", "step_ms_median", "step_ms_p5", "step_ms_p95", "memory_source",
           "peak_memory_gib", "metric", "final_metric")  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of one machine's records")
    try:
        for path in pack(parser.parse_args(argv).folder):
            print(path)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def pack(machine: Path) -> Iterator[Path]:
    """Pack every record below a machine's folder; gives each file that it writes. Raises UserError, and then that suite
    is as it was."""
    if not machine.is_dir():
        raise UserError(f"{machine} is not a folder")
    found = {}
    for path in filter(is_record, sorted(machine.rglob("*.json"))):
        found.setdefault(place_of(machine, path), []).append(path)
    for place, paths in found.items():
        yield from write(place, paths)
        clean_up(place.parent, paths)


def is_record(path: Path) -> bool:
    """Whether a file is a run's, and named by its kind or its run: not a profile that a page names."""
    if path.name in LOADERS or path.name == "record.json":
        return True
    return is_of_a_run(path) and json.loads(path.read_text())["run_id"] == path.stem


def place_of(machine: Path, path: Path) -> Path:
    """The pack that a record belongs in: of the folder that is the machine's, or of the machine for a single run."""
    first = machine / path.relative_to(machine).parts[0]
    alone = first == path or any((first / name).exists() for name in (*LOADERS, "record.json"))
    return machine / packed.PACKS[1] if alone else first / packed.PACKS[0]


def write(place: Path, paths: list[Path]) -> list[Path]:
    """Write a pack and its table, with what the pack has already. The same records always give the same bytes."""
    lines = {}
    if place.exists():
        lines = {line["file"]: line for line in map(json.loads, gzip.decompress(place.read_bytes()).splitlines())}
    for path in paths:
        name = path.relative_to(place.parent).as_posix()
        record = json.loads(path.read_text())
        tail = log_tail(path.parent) if record["status"] == "failed" else ""
        lines[name] = {"file": name} | ({"log_tail": tail} if tail else {}) | {"record": record}
    text = "".join(json.dumps(lines[name], separators=(", ", ": ")) + "\n" for name in sorted(lines))
    if bad := [line[:80] for line in text.splitlines() if not packed.LINE.fullmatch(line)]:
        raise UserError(f"{place}: the name of a file has letters other than a-z, A-Z, 0-9 and _.+-: {bad[0]}")
    rows = [row(LOADERS.get(Path(name).name, load)(place.parent / name)) for name in sorted(lines)]
    table = place.with_name(f"{place.name.partition('.')[0]}.csv")
    for path, content in ((table, spreadsheet.text([COLUMNS, *rows]).encode()),
                          (place, gzip.compress(text.encode(), mtime=0))):  # fmt: skip
        temporary = path.with_name(f".{path.name}")
        temporary.write_bytes(content)
        temporary.replace(path)
    return [place, table]


def log_tail(folder: Path) -> str:
    """The last lines of each log of a run."""
    logs = [(path.name, path.read_text(errors="replace").splitlines()) for path in sorted(folder.glob("*.log"))]
    return "\n".join("\n".join([f"==> {name} <==", *lines[-TAIL:]]) for name, lines in logs if lines)


def row(record: Record) -> list:
    """A record's cells; what its kind does not have is empty."""
    config = record.config
    cells = {"run_id": record.run_id, "status": record.status, "started_at": record.started_at,
             "program": record.program, "device": config.device, "num_devices": config.num_devices}  # fmt: skip
    if not isinstance(record, networks.NetworkRecord | scripts.ForeignRecord):
        cells |= {"round": record.label.round, "seed": config.seed, "mode": config.mode, "model": config.model,
                  "per_device_batch": config.per_device_batch}  # fmt: skip
    cells |= measured(record) if record.ok else {}
    return [cells.get(column) for column in COLUMNS]


def measured(record: Record) -> dict:
    """Throughput, step and memory of a run that succeeded; of an emulation its throughput and its steps."""
    if isinstance(record, networks.NetworkRecord | scripts.ForeignRecord):
        return {}
    if isinstance(record, emulations.EmulationRecord):
        steps = record.steps_s
        return {"throughput": digits(record.throughput), "step_ms_median": digits(1e3 * statistics.median(steps))}
    cells = {"throughput": digits(record.throughput), "unit": f"{record.workload.units}/s"}
    cells |= {f"step_ms_{name}": digits(1e3 * record.step_time[name]) for name in ("median", "p5", "p95")}
    peaks = record.peak_memory
    source = next((s for s in MEMORY_ORDER if peaks and all(peak.get(s) is not None for peak in peaks)), None)
    if source:
        cells |= {"memory_source": source, "peak_memory_gib": digits(max(peak[source] for peak in peaks))}
    metric = record.workload.metrics[0].key
    return cells | ({"metric": metric, "final_metric": digits(record.accuracy[metric])} if record.accuracy else {})


def digits(value: float | None) -> float | None:
    """Five significant digits: a table to read, not to compute from."""
    return None if value is None else float(f"{value:.5g}")


def clean_up(folder: Path, paths: list[Path]) -> None:
    """Remove the files that are packed and the logs beside them, and the folders that are empty then."""
    for path in paths:
        path.unlink()
        if path.parent != folder:
            for log in path.parent.glob("*.log"):
                log.unlink()
    for place in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        if not any(place.iterdir()):
            place.rmdir()


if __name__ == "__main__":
    sys.exit(main())
