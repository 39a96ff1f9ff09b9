"""bench/record: a record is whole and true to its schema, or it is refused by name. Those of older versions are in
test_reference.py."""

import copy
import dataclasses
import json
import os
import re
import subprocess
import sys
from unittest import mock

import jsonschema
import pytest

from bench import formulas
from bench.config.options import RunConfig, to_dict
from bench.config.resolve import resolve
from bench.config.workloads import WORKLOADS
from bench.files import PROJECT
from bench.record import SCHEMA_VERSION
from bench.record import write as writer
from bench.record.read import find_runs, load
from bench.record.schema import BadRecord
from tests import records

CONFIG = resolve(RunConfig(mode="ddp", num_devices=2), "cpu", 2)
FAILURE = {"rank": 1, "kind": "killed", "message": "rank 1 was killed", "traceback": ""}


@pytest.fixture
def good(real_run):
    return copy.deepcopy(real_run.record)


def write(folder, content):
    path = folder / "record.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def refusal(path) -> str:
    """The one line with which a file is refused; it names the file."""
    with pytest.raises(BadRecord) as caught:
        load(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    return message


def test_a_real_record_is_read_as_it_is_and_names_what_made_it(real_run, good):
    record = load(real_run.run_dir / "record.json")
    assert record.data == good and record.folder == str(real_run.run_dir) and good["run_id"] == real_run.run_dir.name
    assert good["config"]["model"].endswith("small_resnets.py:two_blocks") and good["config"]["threads"] >= 1
    assert good["workload"] == WORKLOADS["images"].to_dict() and good["nodes"] == [{"ranks": [0]}]
    assert good["command"].startswith("make bench MODE=single ") and good["environment"]["versions"]["torch"]
    assert good["samples"][0]["devices"][0]["peak_memory_gib"]
    assert set(good["summary"]) <= {*good["provenance"], "command_to_first_timed_step_s"}
    assert good["config"]["out"] == real_run.out.name  # no folder of its owner
    assert str(real_run.out.parent) not in json.dumps(good)


def test_the_json_schema_follows_from_the_definition_and_refuses_what_the_reader_refuses(good):
    schema = json.loads(subprocess.check_output([sys.executable, "-m", "bench.record.definition"]))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(good, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(good | {"samples": []}, schema)


def test_the_summary_follows_from_the_samples(good):
    times = [part["step_time_s"] for part in good["samples"]]
    steps = formulas.slowest_rank(times)
    summary = good["summary"]
    assert summary["throughput_per_s"] == formulas.throughput_per_s(times, 6)
    assert summary["step_time_s"] == {
        "n": 3, "mean": pytest.approx(sum(steps) / 3), "median": formulas.percentile(steps, 50),
        "p5": formulas.percentile(steps, 5), "p95": formulas.percentile(steps, 95),
    }  # fmt: skip
    assert summary["median_throughput_per_s"] == pytest.approx(6 / sorted(steps)[1])
    assert 0 < summary["command_to_first_timed_step_s"] < 120


def test_a_file_that_is_no_record_is_refused(tmp_path, good):
    text = json.dumps(good).encode()
    for content in (*(text[:length] for length in (0, 1, len(text) // 2, len(text) - 1)), b"\xff\xfe\x00"):
        refusal(write(tmp_path, content))
    for content in ([], 3, None, "text", {}):
        assert "None" in refusal(write(tmp_path, content))  # its schema version
    refusal(tmp_path / "missing.json")
    for version in (0, SCHEMA_VERSION + 1, "1", None, True):
        assert f"{version}, " in refusal(write(tmp_path, good | {"schema_version": version}))


def test_a_sweep_has_the_name_that_it_has_today(tmp_path):
    (now,) = records.suite_records("sweep", {"ddp": {"mode": "ddp"}}, rounds=1)
    old = copy.deepcopy(now.data) | {"schema_version": 8}
    old["config"] = {name: value for name, value in old["config"].items() if name != "config_file"} | {"study": "knobs"}
    record = load(path := write(tmp_path, old))
    assert record.label.study == "sweep" and record.label.config_file is None
    assert json.loads(path.read_text()) == old  # reading changes no file


def test_the_view_is_read_only_and_has_what_the_file_has(real_run, good):
    record = real_run.loaded
    assert record.added == frozenset()
    assert dict(record) == good and list(record) == list(good) and to_dict(record.config) == good["config"]
    assert record.throughput == good["summary"]["throughput_per_s"] and record.step_time["n"] == 3
    assert record.peak_memory == good["summary"]["peak_memory_gib"] and record.mode.one_process
    (sample,) = record.samples
    assert sample.step_time_s == good["samples"][0]["step_time_s"] and sample.facts == good["samples"][0]["facts"]
    assert (record.world_size, record.num_devices, record.global_batch) == (1, 1, 6)
    assert record.failure is None and not record.hung and record.epochs == [] and record.accuracy == {}
    with pytest.raises(TypeError):
        record["status"] = "failed"
    for changed, name in ((record, "data"), (record, "throughput"), (record.config, "mode")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(changed, name, None)
    with pytest.raises(AttributeError):
        sample.rank = 1


def test_a_run_is_found_by_whatever_name_and_a_broken_one_is_no_other_file(tmp_path, good):
    for name, content in (("x/a.json", good), ("x/b.json", {"run_id": "of another file"}), ("y/record.json", good)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    assert [found.run_id for found in find_runs(tmp_path)] == [good["run_id"]] * 2
    broken = tmp_path / "x" / "broken.json"
    broken.write_text(json.dumps(good)[:-20])
    with pytest.raises(BadRecord, match=re.escape(str(broken))):
        find_runs(tmp_path)


EDITS = {
    "summary": lambda r: r.pop("summary"),
    "throughput_per_s": lambda r: r["summary"].pop("throughput_per_s"),
    "summary/throughput_per_s": lambda r: r["summary"].update(throughput_per_s="fast"),
    "nodes": lambda r: r.pop("nodes"),
    "samples": lambda r: r.update(samples=[]),
    "step_time_s": lambda r: r["samples"][0]["step_time_s"].append(0),
    "world_size": lambda r: r["topology"].update(world_size=0),
    "samples: ": lambda r: r.update(status="failed"),  # and no failure is given
    "provenance": lambda r: r["provenance"].pop("step_time_s"),
    "summary/step_time_s": lambda r: r["summary"]["step_time_s"].update(median=0.001),
    "summary/median_throughput_per_s": lambda r: r["summary"].update(median_throughput_per_s=1e6),
    "topology/global_batch": lambda r: r["topology"].update(global_batch=999),
    "config/suite": lambda r: r["config"].update(suite=3),
    "config/mode": lambda r: r["config"].update(mode="telepathy"),
    "config/colour": lambda r: r["config"].update(colour="red"),
    "config/tuned": lambda r: r["config"].update(tuned=1),
    "config/lr": lambda r: r["config"].update(lr=True),
    "config/num_devices": lambda r: r["config"].update(num_devices=None),
    "columns of rank 0": lambda r: r["samples"][0]["devices"][0]["timeline"]["time_s"].append(9.9),
    "environment": lambda r: r.update(environment={}),
}


@pytest.mark.parametrize("where", EDITS)
def test_an_edited_record_is_refused_by_the_name_of_what_does_not_fit(tmp_path, good, where):
    EDITS[where](good)
    assert where in refusal(write(tmp_path, good))


def test_a_failed_run_leaves_a_record_that_names_no_folder_of_this_machine(tmp_path):
    lines = [f'  File "{PROJECT}/bench/training/loop.py", line 3 in f',
             '  File "/home/jane/v/site-packages/torch/a.py", line 1']  # fmt: skip
    writer.write_failure(tmp_path, CONFIG, 1.5, {"machine": {}}, FAILURE | {"traceback": "\n".join(lines)})
    failed = load(tmp_path / "record.json")
    assert (failed["status"], failed.failure["kind"], failed["samples"]) == ("failed", "killed", [])
    assert failed["started_at"] == "1970-01-01T00:00:01.500+00:00" and failed["config"]["num_devices"] == 2
    said = failed["failure"]["traceback"]
    assert said == '  File "bench/training/loop.py", line 3 in f\n  File "site-packages/torch/a.py", line 1'
    for change in ({"kind": "bored"}, {"rank": "one"}, {"traceback": None}):
        with pytest.raises(BadRecord):
            writer.write_failure(tmp_path / "other", CONFIG, 1.5, {}, FAILURE | change)


def test_a_record_is_replaced_whole_or_the_old_one_stays(tmp_path, good):
    """Where the disk is full, a value is not one of JSON's, or the new record breaks the schema."""
    writer.save(tmp_path, good)
    new = good | {"run_id": "another"}
    writer.save(tmp_path, new)
    assert load(tmp_path / "record.json").data == new
    not_json = new | {"environment": new["environment"] | {"load": float("nan")}}
    with mock.patch.object(os, "fsync", side_effect=OSError(28, "No space left on device")), pytest.raises(OSError):
        writer.save(tmp_path, good)
    for bad, error in ((not_json, ValueError), ({k: v for k, v in new.items() if k != "summary"}, BadRecord)):
        with pytest.raises(error):
            writer.save(tmp_path, bad)
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"] and load(tmp_path / "record.json").data == new
