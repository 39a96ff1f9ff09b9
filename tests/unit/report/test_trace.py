"""bench/report/trace.py: the events of a trace are well formed, and they are the spans of the record."""

import itertools
import json
import operator
from pathlib import Path

import pytest

from bench.analysis.lanes import lanes_of
from bench.cli import COMMANDS
from bench.course import reference
from bench.errors import UserError
from bench.files import PROJECT
from bench.record.read import load
from bench.report.trace import clock_sentence, trace_of
from tests import records

REFERENCE = PROJECT / "results" / "reference"


def profiled():
    """A run of two ranks, made up: the second began 30 ms after the first, by a clock that is 2 ms off."""

    def shift(data: dict) -> None:
        for part, start_s in zip(data["samples"], (0.0, 0.03), strict=True):
            error_s = 0.002 if start_s else 0.0
            part["timeline"] = part["timeline"] | {"start_s": start_s, "clock_error_s": error_s}

    return records.edited(records.profiled_records()[-1:], shift)[0]


def measured():
    """Profiled reference records: of one GPU, and of every mode on two CPU processes."""
    on_gpu = [load(path) for path in sorted(REFERENCE.glob("1x-nvidia-h100-80gb-hbm3/*/record.json"))]
    return [record for record in on_gpu if record.config.profile] + reference("breakdown").extra


def spans_of(trace: dict) -> dict[int, list[dict]]:
    """Rank -> its spans, in seconds of the trace, made from the events and from nothing else."""
    found = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and not event["name"].startswith("step "):
            start_s, end_s = event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
            found.setdefault(event["pid"], []).append({
                "lane": event["cat"], "name": event["name"], "start_s": start_s, "end_s": end_s,
                "bytes": event.get("args", {}).get("bytes")})  # fmt: skip
    return found


@pytest.mark.parametrize("record", [profiled(), *measured()], ids=lambda record: record.config.mode)
def test_events_are_well_formed_nest_and_are_the_spans_of_the_record(record):
    trace = json.loads(json.dumps(trace_of(record)))
    tracks, named = {}, set()
    for event in trace["traceEvents"]:
        place = event["pid"], event["tid"]
        if event["ph"] == "M":
            named |= {place} if event["name"] == "thread_name" and event["args"]["name"] else set()
            continue
        assert event["ph"] == "X" and event["ts"] >= 0 and event["dur"] >= 0
        tracks.setdefault(place, []).append((event["ts"], event["ts"] + event["dur"]))
    assert named == set(tracks) and min(start for spans in tracks.values() for start, _ in spans) == 0
    for spans in tracks.values():  # two spans of a track are disjoint, or one lies in the other
        for (_, b), (c, d) in itertools.combinations(sorted(spans, key=lambda span: (span[0], -span[1])), 2):
            assert c >= b or d <= b

    found, starts = spans_of(trace), {part.rank: part.timeline.get("start_s", 0.0) for part in record.samples}
    first = min(starts[part.rank] + span["start_s"] for part in record.samples
                for span in [{"start_s": 0.0}, *part.timeline["spans"]])  # fmt: skip
    assert list(found) == [part.rank for part in record.samples]
    for part in record.samples:
        later, by_start = starts[part.rank] - first, operator.itemgetter("lane", "name", "start_s")
        ours, theirs = (sorted(spans, key=by_start) for spans in (part.timeline["spans"], found[part.rank]))
        for span, event in zip(ours, theirs, strict=True):
            times = {name: pytest.approx(span[name] + later, abs=1e-7) for name in ("start_s", "end_s")}
            assert event == span | times
        # The timeline's figure draws the same spans in the same tracks.
        drawn = {lane: [len(track) for track in some] for lane, some in lanes_of(found[part.rank]).items()}
        figure = lanes_of(part.timeline["spans"]).items()
        assert drawn == {lane: [len(track) for track in some] for lane, some in figure}


def test_the_clock_says_which_error_is_left():
    two = profiled()
    assert "at most 2 ms" in clock_sentence(two)
    without = records.in_samples(lambda part: [part["timeline"].pop(name) for name in ("start_s", "clock_error_s")])
    (older,) = records.edited([two], without)
    begins = [min(span["start_s"] for span in spans) for spans in spans_of(trace_of(older)).values()]
    assert begins == [0.0, 0.0] and "does not relate" in clock_sentence(older)


def report(*words: str) -> int:
    return COMMANDS["report"].run(COMMANDS["report"].parse([*words, "--format=trace"]))


def test_the_command_writes_one_file_beside_the_record_and_again(tmp_path, capsys):
    (folder,) = Path(records.store(tmp_path, [profiled()])).iterdir()
    for place in (folder, folder / "record.json"):
        assert report(str(place)) == 0
        assert capsys.readouterr().out.rstrip().endswith(f"trace: {folder / 'trace.json'}")
    assert {path.name for path in folder.iterdir()} == {"record.json", "trace.json"}
    assert len(json.loads((folder / "trace.json").read_text())["traceEvents"]) > 20
    with pytest.raises(UserError, match="exists"):
        report(str(folder), f"--out={folder / 'trace.json'}")


@pytest.mark.parametrize("words, named", [([], "RECORDS"), (["PLAIN"], "PROFILE=1"), (["nowhere"], "nowhere")])
def test_what_has_no_trace_is_refused_and_nothing_is_written(tmp_path, words, named):
    (folder,) = Path(records.store(tmp_path, [records.record("ddp")])).iterdir()
    with pytest.raises(UserError, match=named):
        report(*(word.replace("PLAIN", str(folder)) for word in words))
    assert [path.name for path in folder.iterdir()] == ["record.json"]


def test_a_run_that_failed_is_named_as_the_reason():
    with pytest.raises(UserError, match=r"status failed.*PROFILE=1"):
        trace_of(records.record("ddp", failed="raised", profile=True))
