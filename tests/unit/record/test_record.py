"""bench/record: a record is whole and true to its schema, or it is refused by name; older versions are migrated."""

import copy
import dataclasses
import json
import os
import re
import subprocess
import sys

import jsonschema
import pytest

from bench import formulas
from bench.config.options import FIELDS, UNSET, RunConfig, to_dict
from bench.config.resolve import resolve
from bench.config.workloads import WORKLOADS
from bench.files import PROJECT
from bench.record import SCHEMA_VERSION, packed
from bench.record import write as writer
from bench.record.read import find_runs, load, text_of
from bench.record.schema import BadRecord
from bench.record.view import Record
from tests import records
from tests.runs import ROOT

CONFIG = resolve(RunConfig(mode="ddp", num_devices=2), "cpu", 2)
FAILURE = {"rank": 1, "kind": "killed", "message": "rank 1 was killed", "traceback": ""}


@pytest.fixture
def good(real_run):
    return copy.deepcopy(real_run.record)


def write(folder, content) -> str:
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


# --- Older versions -------------------------------------------------------------------------------------------------

# What was added with each version: parts of a record, parts of a rank's sample, options.
ADDED = {
    6: {"options": ("looks", "limit_minutes", "plain", "gpu_defaults")},
    5: {"parts": ("workload", "nodes"), "options": ("study", "variant")},
    4: {"parts": ("observed",), "options": ("mistake", "watch", "lr_batch")},
    3: {"options": ("epochs", "augment", "checkpoint", "track", "resume", "evaluate")},
    2: {"sample": ("facts", "phase_time_s"), "options": ("suite", "role", "round", "compression", "sync", "profile")},
}


def as_of(version: int, record: Record) -> dict:
    """The content of a record as a program of that schema version would have written it."""
    old = copy.deepcopy(record.data) | {"schema_version": version}
    for name in ("summary", "provenance"):
        old[name].pop("median_throughput_per_s", None)
    if old["summary"]:
        del old["summary"]["step_time_s"]["mean"]
    for name in ("summary", "provenance") if version < 5 else ():
        old[name] = {"throughput_images_per_s" if k == "throughput_per_s" else k: v for k, v in old[name].items()}
    if version < 5:
        old["config"]["role"] = old["config"].pop("program")
    for added in (added for number, added in ADDED.items() if number > version):
        for name in added.get("parts", ()):
            old.pop(name, None)
        for name in added.get("options", ()):
            del old["config"][name]
        for part in old["samples"]:
            for name in added.get("sample", ()):
                del part[name]
    return old


def test_a_sweep_has_the_name_that_it_has_today(tmp_path):
    (now,) = records.suite_records("sweep", {"ddp": {"mode": "ddp"}}, rounds=1)
    old = copy.deepcopy(now.data) | {"schema_version": 8}
    old["config"] = {name: value for name, value in old["config"].items() if name != "config_file"} | {"study": "knobs"}
    record = load(write(tmp_path, old))
    assert record.label.study == "sweep" and record.label.config_file is None


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_a_record_of_an_older_version_is_migrated(tmp_path, version):
    """What it measured stays as it is; its labels and values have the names of today, an option that did not exist its
    default; reading changes no file."""
    (now,) = records.suite_records("replay", {"fair: ddp": {"mode": "ddp", "variant": "fair"}}, rounds=1)
    old = as_of(version, now)
    path = write(tmp_path, old)
    before = path.read_text()
    record = load(path)
    assert record["schema_version"] == SCHEMA_VERSION and path.read_text() == before
    assert record["samples"] == old["samples"] and record["topology"] == old["topology"]
    assert record.throughput == old["summary"]["throughput_images_per_s" if version < 5 else "throughput_per_s"]
    assert record["summary"] == now["summary"] and "throughput_per_s" in record["provenance"]
    assert record.added == {"median_throughput_per_s", "step_time_s/mean"} and now.added == frozenset()
    assert record.workload == WORKLOADS["images"] and record["nodes"] == [{"ranks": [0, 1]}]
    labels = list(dataclasses.asdict(record.label).values())
    assert labels[:5] == (["replay", now.label.suite, "fair: ddp", "fair", 0] if version > 1 else [None] * 5)
    assert not any(labels[5:])
    for name in {name for number, a in ADDED.items() if number > version for name in a.get("options", ())} & set(
        FIELDS
    ):
        expected = False if name in ("augment", "checkpoint") and version < 3 else UNSET[name]
        assert getattr(record.config, name) == expected, name
    failed = load(write(tmp_path, as_of(version, records.record("ddp", failed="killed"))))
    assert failed.failure["kind"] == "killed" and failed.data.get("nodes", []) == [] and failed.throughput is None
    if version == 1:
        (sample, _) = record.samples
        assert not sample.facts and sample.phase_time_s == {} and not sample.timeline and sample.lab == {}


def test_every_committed_record_is_read_through_the_view():
    """They come from every older version: what is proved above of made-up records holds for files of older programs."""
    versions = set()
    for path in packed.find_files(ROOT / "results" / "reference", "record.json"):
        record, raw = load(path), json.loads(text_of(path))
        versions.add(raw["schema_version"])
        assert record.workload.units == ("tokens" if record.config.model == "gpt" else "images"), path
        assert record["samples"] == raw["samples"]
        label = raw["config"].get("role" if raw["schema_version"] < 5 else "program")
        assert record.program == (label or record.config.mode), path
        if record.ok:
            assert record.throughput > 0 and len(record.samples) == record.world_size, path
            ranks = [rank for node in record["nodes"] for rank in node["ranks"]]
            assert ranks == list(range(record.world_size)) and bool(record.network) == (len(record["nodes"]) > 1), path
    assert versions >= {1, 2, 3, 4}


# --- The view -------------------------------------------------------------------------------------------------------


def test_the_view_is_read_only_and_has_what_the_file_has(real_run, good):
    record = real_run.loaded
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


# --- What is refused ------------------------------------------------------------------------------------------------


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
    "columns of rank 0": lambda r: r["samples"][0]["devices"][0]["timeline"]["time_s"].append(9.9),
    "environment": lambda r: r.update(environment={}),
}


@pytest.mark.parametrize("where", EDITS)
def test_an_edited_record_is_refused_by_the_name_of_what_does_not_fit(tmp_path, good, where):
    EDITS[where](good)
    assert where in refusal(write(tmp_path, good))


# --- Whole or not at all ------------------------------------------------------------------------------------------


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


def test_a_record_is_replaced_whole_or_the_old_one_stays(tmp_path, good, monkeypatch):
    """Where the disk is full, a value is not one of JSON's, or the new record breaks the schema."""
    writer.save(tmp_path, good)
    new = good | {"run_id": "another"}
    writer.save(tmp_path, new)
    assert load(tmp_path / "record.json").data == new

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    not_json = new | {"environment": new["environment"] | {"load": float("nan")}}
    with monkeypatch.context() as patched, pytest.raises(OSError):
        patched.setattr(os, "fsync", full_disk)
        writer.save(tmp_path, good)
    for bad, error in ((not_json, ValueError), ({k: v for k, v in new.items() if k != "summary"}, BadRecord)):
        with pytest.raises(error):
            writer.save(tmp_path, bad)
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"] and load(tmp_path / "record.json").data == new
