"""The timelines of a record (PROFILE=1) as trace events for Perfetto and chrome://tracing: all ranks on one clock.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format"). A
process is a rank, a thread is a track of the timeline's figure, and times are in microseconds."""

import json
from pathlib import Path

from bench.analysis.lanes import lanes_of
from bench.errors import UserError
from bench.record.describe import machine_line, workload
from bench.record.view import Record
from bench.report.export import save

TICKS = 8  # per microsecond: exact in binary and in nanoseconds, so that neighbours never overlap by rounding
NAMES = {"dp": "parts", "phase": "phases"}  # of lanes
NOTE = "one step under torch.profiler, which slows it: shares and order, not speeds"


def trace_of(record: Record) -> dict:
    """The content of the file. Raises UserError for a record without a timeline."""
    parts = [part for part in record.samples if part.timeline]
    if not parts:
        why = "" if record.ok else f", because the run has no timed steps (status {record.status})"
        raise UserError(f"{record.run_id} has no timeline to export{why}: repeat the run with PROFILE=1")
    begins = [part.timeline.get("start_s", 0.0) for part in parts]
    first = min(begin + span["start_s"] for begin, part in zip(begins, parts, strict=True)
                for span in [{"start_s": 0.0}, *part.timeline["spans"]])  # fmt: skip
    events = []
    for begin, part in zip(begins, parts, strict=True):
        events += events_of(part.timeline, part.rank, process_name(record, part), begin - first)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"run": record.run_id, "mode": record.config.mode, "workload": workload(record),
                      "machine": machine_line(record), "clock": clock_sentence(record), "note": NOTE},
    }  # fmt: skip


def process_name(record: Record, part) -> str:
    devices = ", ".join(dict.fromkeys(device["device"] for device in part.devices))
    node = f" on {record.nodes[part.node].name}" if record.several_machines else ""
    return f"rank {part.rank} ({devices}){node}"


def events_of(timeline: dict, rank: int, name: str, shift_s: float) -> list[dict]:
    """One rank's events: the names of its tracks, then their spans. shift_s: from its clock to the trace's."""
    end_s = max([timeline["step_s"], *(span["end_s"] for span in timeline["spans"] if span["lane"] == "phase")])
    step = {"lane": "phase", "name": f"step {timeline['step']}", "start_s": 0.0, "end_s": end_s, "bytes": None}
    tracks, counts = [], {}
    for lane, some in lanes_of(timeline["spans"]).items():
        for spans in some:
            title = f"compute: {spans[0]['name']}" if lane == "compute" else NAMES.get(lane, lane)
            counts[title] = counts.get(title, 0) + 1
            title += f" ({counts[title]})" if counts[title] > 1 else ""
            tracks.append((title, [step, *spans] if lane == "phase" else spans))
    labels = {"process_name": {"name": name}, "process_sort_index": {"sort_index": rank}}
    events = [{"ph": "M", "pid": rank, "tid": 0, "name": kind, "args": value} for kind, value in labels.items()]
    for track, (title, spans) in enumerate(tracks):
        named = {"thread_name": {"name": title}, "thread_sort_index": {"sort_index": track}}
        events += [{"ph": "M", "pid": rank, "tid": track, "name": kind, "args": value} for kind, value in named.items()]
        events += [event_of(span, rank, track, shift_s) for span in spans]
    return events


def event_of(span: dict, rank: int, track: int, shift_s: float) -> dict:
    start, end = (round(1e6 * TICKS * (span[name] + shift_s)) for name in ("start_s", "end_s"))
    times = {"ts": start / TICKS, "dur": (end - start) / TICKS}
    sent = {} if span["bytes"] is None else {"args": {"bytes": span["bytes"]}}
    return {"ph": "X", "pid": rank, "tid": track, "name": span["name"], "cat": span["lane"], **times, **sent}


def clock_sentence(record: Record) -> str:
    """How the clocks of the ranks relate, and the error that is left."""
    found = [part.timeline for part in record.samples if part.timeline]
    if len(found) < 2:
        return "one rank, one clock"
    if any("clock_error_s" not in timeline for timeline in found):
        return ("this record does not relate the clocks of its ranks: each starts at 0, although they began the step "
                "at slightly different times")  # fmt: skip
    error_ms = 1000 * max(timeline["clock_error_s"] for timeline in found)
    if not error_ms:
        return "the ranks share the clock of their machine"
    return f"the machines' clocks are aligned by barriers: a rank is at most {error_ms:.3g} ms off"


def write_trace(record: Record, path: Path, replace: bool = False) -> None:
    """One event per line. replace: an older file. Raises UserError."""
    found = trace_of(record)
    events = ",\n".join(map(json.dumps, found.pop("traceEvents")))
    rest = json.dumps(found)[1:]
    text = f'{{"traceEvents": [\n{events}\n], {rest}\n'
    save(path, lambda file: file.write_text(text, encoding="utf-8"), replace)
