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
    """The content of a record that a real run wrote."""
    return copy.deepcopy(real_run.record)


def write(folder, content) -> str:
    """The content as a file; returns its path."""
    path = folder / "record.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def refusal(path) -> str:
    """The one line with which a file is refused; it names the file."""
    with pytest.raises(BadRecord) as caught:
        load(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    return message


def test_the_json_schema_follows_from_the_definition(good):
    """It is one, and refuses what the reader refuses."""
    printed = subprocess.run([sys.executable, "-m", "bench.record.definition"], capture_output=True, check=True)
    schema = json.loads(printed.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(good, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(good | {"samples": []}, schema)


def test_a_real_record_is_accepted(real_run, good):
    record = load(real_run.run_dir / "record.json")
    assert record.data == good and record.folder == str(real_run.run_dir)


def test_the_summary_follows_from_the_samples(good):
    times = [part["step_time_s"] for part in good["samples"]]
    steps = formulas.slowest_rank(times)
    summary = good["summary"]
    assert summary["throughput_per_s"] == formulas.throughput_per_s(times, 6)
    assert summary["step_time_s"] == {
        "n": 3, "mean": pytest.approx(sum(steps) / 3), "median": formulas.percentile(steps, 50),
        "p5": formulas.percentile(steps, 5), "p95": formulas.percentile(steps, 95),
    }  # fmt: skip
    median_s = sorted(steps)[1]
    assert summary["median_throughput_per_s"] == pytest.approx(6 / median_s)
    assert 0 < summary["command_to_first_timed_step_s"] < 120


def test_a_real_record_names_what_made_it(real_run, good):
    assert good["run_id"] == real_run.run_dir.name
    assert good["config"]["model"].endswith("small_resnets.py:two_blocks") and good["config"]["threads"] >= 1
    assert good["workload"] == WORKLOADS["images"].to_dict() and good["nodes"] == [{"ranks": [0]}]
    assert good["command"].startswith("make bench MODE=single ")
    assert {"machine", "versions"} <= set(good["environment"])
    assert good["environment"]["versions"]["torch"]
    assert good["samples"][0]["devices"][0]["peak_memory_gib"]
    assert set(good["summary"]) <= {*good["provenance"], "command_to_first_timed_step_s"}


def test_a_record_names_no_folder_of_its_owner(real_run, good):
    assert good["config"]["out"] == real_run.out.name
    assert str(real_run.out.parent) not in json.dumps(good)


def test_a_truncated_record_is_refused(tmp_path, good):
    text = json.dumps(good)
    for length in (0, 1, len(text) // 2, len(text) - 1):
        assert "not a readable record" in refusal(write(tmp_path, text[:length]))


@pytest.mark.parametrize("content", ["[]", "3", "null", '"text"', "{}"])
def test_json_that_is_no_record_is_refused(tmp_path, content):
    assert "schema version None" in refusal(write(tmp_path, content))


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "record.json"
    path.write_bytes(b"\xff\xfe\x00")
    refusal(path)


def test_a_missing_file_is_refused(tmp_path):
    refusal(tmp_path / "record.json")


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, "1", None, True])
def test_an_unknown_schema_version_is_refused(tmp_path, good, version):
    good["schema_version"] = version
    assert f"schema version {version}, this program reads 1 to {SCHEMA_VERSION}" in refusal(write(tmp_path, good))


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


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_a_record_of_an_older_version_is_migrated(tmp_path, version):
    """What it measured stays as it is; its labels and figures have the names of today; reading changes no file."""
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
    assert labels == (["replay", now.label.suite, "fair: ddp", "fair", 0] if version > 1 else [None] * 5) + [None] * 4


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_an_option_that_did_not_exist_had_its_default(tmp_path, version):
    (now,) = records.suite_records("replay", {"fair: ddp": {"mode": "ddp", "variant": "fair"}}, rounds=1)
    config = load(write(tmp_path, as_of(version, now))).config
    added = {name for number, a in ADDED.items() if number > version for name in a.get("options", ())}
    for name in added & FIELDS.keys():
        expected = False if name in ("augment", "checkpoint") and version < 3 else UNSET[name]
        assert getattr(config, name) == expected, name


def test_the_programs_of_an_old_suite_are_told_by_their_variant(tmp_path):
    for program, variant in {"base: dp": "base", "wrong: host-sync": "wrong", "ddp no_sync": None, "ddp": None}.items():
        (now,) = records.suite_records("knobs", {program: {"mode": "ddp"}}, rounds=1)
        assert load(write(tmp_path, as_of(4, now))).config.label.variant == variant


@pytest.mark.parametrize("version", [3, 4])
def test_old_records_of_failed_runs_and_of_trainings_are_migrated(tmp_path, version):
    failed = load(write(tmp_path, as_of(version, records.record("ddp", failed="killed"))))
    assert failed.failure["kind"] == "killed" and failed["nodes"] == [] and failed.throughput is None
    trained = records.record("ddp", top1=[0.5, 0.75], epochs=2, data="digits", target=0.7)
    record = load(write(tmp_path, as_of(version, trained)))
    assert record.top1 == 0.75 and record.accuracy == trained.accuracy and len(record.epochs) == 2


COMMITTED = packed.find_files(ROOT / "results" / "reference", "record.json")


def test_the_committed_records_are_of_every_older_version():
    """So what is proved above of made-up records holds for files that older programs really wrote."""
    assert {json.loads(text_of(path))["schema_version"] for path in COMMITTED} >= {1, 2, 3, 4}


def test_every_committed_record_is_read_through_the_view():
    for path in COMMITTED:
        record, raw = load(path), json.loads(text_of(path))
        assert record["schema_version"] == SCHEMA_VERSION, path
        assert record.workload.units == ("tokens" if record.config.model == "gpt" else "images"), path
        assert record["samples"] == raw["samples"]
        label = raw["config"].get("role" if raw["schema_version"] < 5 else "program")
        assert record.program == (label or record.config.mode), path
        if record.ok:
            assert record.throughput > 0 and len(record.samples) == record.world_size, path
            ranks = [rank for node in record["nodes"] for rank in node["ranks"]]
            assert ranks == list(range(record.world_size)) and bool(record.network) == (len(record["nodes"]) > 1), path


# --- The view -------------------------------------------------------------------------------------------------------


def test_a_record_is_read_only(real_run):
    record = real_run.loaded
    with pytest.raises(TypeError):
        record["status"] = "failed"
    with pytest.raises(TypeError):
        del record["status"]
    for name, value in (("data", {}), ("folder", ""), ("throughput", 1.0), ("config", None)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, value)
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.config.mode = "ddp"
    with pytest.raises(AttributeError):
        record.samples[0].rank = 1


def test_the_view_says_what_the_file_says(real_run, good):
    record = real_run.loaded
    assert dict(record) == good and list(record) == list(good) and len(record) == len(good)
    assert to_dict(record.config) == good["config"]
    assert (record.run_id, record.status, record.ok, record.command) == (
        good["run_id"], "ok", True, good["command"],
    )  # fmt: skip
    assert record.throughput == good["summary"]["throughput_per_s"] and record.step_time["n"] == 3
    assert record.peak_memory == good["summary"]["peak_memory_gib"] and record.mode.one_process
    (sample,) = record.samples
    assert sample.step_time_s == good["samples"][0]["step_time_s"] and sample.facts == good["samples"][0]["facts"]
    assert (record.world_size, record.num_devices, record.global_batch) == (1, 1, 6)
    assert record.machine == good["environment"]["machine"] and record.failure is None and not record.hung
    assert record.epochs == [] and record.top1 is None and record.accuracy == {}


def test_what_an_old_record_lacks_is_empty_or_false(tmp_path):
    record = load(write(tmp_path, as_of(1, records.record("ddp"))))
    assert not record.samples[0].facts and record.samples[0].phase_time_s == {}
    assert not record.samples[0].timeline and record.samples[0].lab == {}


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


@pytest.mark.parametrize(
    "edit",
    [
        lambda r: r.update(extra=1),
        lambda r: r.update(status="fine"),
        lambda r: r.pop("summary"),
        lambda r: r["summary"].pop("throughput_per_s"),
        lambda r: r["summary"].update(throughput_per_s=-1.0),
        lambda r: r["summary"].update(throughput_per_s="fast"),
        lambda r: r.pop("workload"),
        lambda r: r["workload"].pop("unit"),
        lambda r: r["workload"].update(metrics=[]),
        lambda r: r.pop("nodes"),
        lambda r: r.update(samples=[]),
        lambda r: r["samples"][0].update(step_time_s=[]),
        lambda r: r["samples"][0]["step_time_s"].append(0),
        lambda r: r["samples"][0].update(final_weights_sha256="short"),
        lambda r: r["config"].pop("mode"),
        lambda r: r["topology"].update(world_size=0),
        lambda r: r.update(status="failed"),  # and no failure is told
        lambda r: r["provenance"].pop("step_time_s"),
    ],
)
def test_an_edited_record_is_refused(tmp_path, good, edit):
    edit(good)
    assert "not a valid record" in refusal(write(tmp_path, good))


def test_a_failed_run_leaves_a_record(tmp_path):
    writer.write_failure(tmp_path, CONFIG, 1.5, {"machine": {}}, FAILURE)
    failed = load(tmp_path / "record.json")
    assert (failed["status"], failed["failure"], failed["samples"]) == ("failed", FAILURE, [])
    assert failed["started_at"] == "1970-01-01T00:00:01.500+00:00"
    assert failed["config"]["num_devices"] == 2


def test_a_traceback_names_no_folder_of_this_machine(tmp_path):
    lines = [
        f'  File "{PROJECT}/bench/training/loop.py", line 3 in f',
        '  File "/home/jane/v/site-packages/torch/a.py", line 1',
    ]
    writer.write_failure(tmp_path, CONFIG, 1.5, {"machine": {}}, FAILURE | {"traceback": "\n".join(lines)})
    said = load(tmp_path / "record.json")["failure"]["traceback"]
    assert said == '  File "bench/training/loop.py", line 3 in f\n  File "site-packages/torch/a.py", line 1'


@pytest.mark.parametrize("change", [{"kind": "bored"}, {"rank": "one"}, {"traceback": None}])
def test_a_failure_that_says_nothing_useful_is_refused(tmp_path, change):
    with pytest.raises(BadRecord):
        writer.write_failure(tmp_path, CONFIG, 1.5, {}, FAILURE | change)
    assert list(tmp_path.iterdir()) == []


# --- Whole or not at all ------------------------------------------------------------------------------------------


@pytest.fixture
def with_old(tmp_path, good):
    """A folder that holds a record already; returns the folder and the old record's text."""
    writer.save(tmp_path, good)
    return tmp_path, (tmp_path / "record.json").read_text()


def old_is_untouched(folder, old) -> bool:
    """Only the old record is there, as it was."""
    return [p.name for p in folder.iterdir()] == ["record.json"] and (folder / "record.json").read_text() == old


def test_a_record_is_replaced_whole(with_old, good):
    folder, _ = with_old
    good["run_id"] = "another"
    writer.save(folder, good)
    assert load(folder / "record.json").data == good
    assert [p.name for p in folder.iterdir()] == ["record.json"]


def test_a_write_that_fails_keeps_the_old_record(with_old, good, monkeypatch):
    folder, old = with_old

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError):
        writer.save(folder, good)
    assert old_is_untouched(folder, old)


def test_a_value_that_json_has_not_keeps_the_old_record(with_old, good):
    folder, old = with_old
    good["environment"]["load"] = float("nan")
    with pytest.raises(ValueError):
        writer.save(folder, good)
    assert old_is_untouched(folder, old)


def test_a_record_that_breaks_the_schema_is_not_written(with_old, good):
    folder, old = with_old
    del good["summary"]
    with pytest.raises(BadRecord):
        writer.save(folder, good)
    assert old_is_untouched(folder, old)


# --- Records that somebody edited -----------------------------------------------------------------------------------


EDITS = {
    "summary/step_time_s": lambda r: r["summary"]["step_time_s"].update(median=0.001),
    "summary/median_throughput_per_s": lambda r: r["summary"].update(median_throughput_per_s=1e6),
    "summary/throughput_per_s": lambda r: r["summary"].update(throughput_per_s=1e6),
    "summary/peak_memory_gib": lambda r: r["summary"]["peak_memory_gib"][0].update(pss=0.1),
    "topology/global_batch": lambda r: r["topology"].update(global_batch=999),
    "config/suite": lambda r: r["config"].update(suite=3),
    "config/device": lambda r: r["config"].pop("device"),
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
