"""bench/record/write.py: a record is whole and true to its schema, or it is refused by name."""

import copy
import json
import os

import jsonschema
import pytest

from bench import formulas
from bench.config.options import RunConfig, resolve
from bench.record import write as record
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
    with pytest.raises(record.BadRecord) as caught:
        record.load(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    return message


def test_the_schema_itself_is_one():
    jsonschema.Draft202012Validator.check_schema(json.loads(record.SCHEMA_PATH.read_text()))


def test_a_real_record_is_accepted(real_run, good):
    assert record.load(real_run.run_dir / "record.json") == good


def test_the_summary_follows_from_the_samples(good):
    times = [part["step_time_s"] for part in good["samples"]]
    steps = formulas.slowest_rank(times)
    summary = good["summary"]
    assert summary["throughput_images_per_s"] == formulas.throughput_images_per_s(times, 6)
    assert summary["step_time_s"] == {
        "n": 3, "median": formulas.percentile(steps, 50), "p5": formulas.percentile(steps, 5),
        "p95": formulas.percentile(steps, 95),
    }  # fmt: skip
    assert 0 < summary["command_to_first_timed_step_s"] < 120


def test_a_real_record_names_what_made_it(real_run, good):
    assert good["run_id"] == real_run.run_dir.name
    assert good["config"]["model"] == "resnet18" and good["config"]["threads"] >= 1
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


@pytest.mark.parametrize("version", [0, record.SCHEMA_VERSION + 1, "1", None, True])
def test_an_unknown_schema_version_is_refused(tmp_path, good, version):
    good["schema_version"] = version
    assert f"schema version {version}, this program reads 1 to {record.SCHEMA_VERSION}" in refusal(
        write(tmp_path, good)
    )


def test_a_record_of_version_1_is_migrated(tmp_path, good):
    """It had no suites, no knobs, no facts and no phase times; what it measured stays as it is."""
    old = copy.deepcopy(good)
    old["schema_version"] = 1
    new_options = {"suite", "role", "round", "compression", "sync", "overlap", "profile"}
    old["config"] = {name: value for name, value in old["config"].items() if name not in new_options}
    for part in old["samples"]:
        del part["facts"], part["phase_time_s"]
    path = write(tmp_path, old)
    before = path.read_text()
    record_now = record.load(path)
    assert record_now["schema_version"] == record.SCHEMA_VERSION
    assert (record_now["config"]["compression"], record_now["config"]["sync"]) == ("none", True)
    assert record_now["samples"] == old["samples"] and record_now["summary"] == old["summary"]
    assert path.read_text() == before  # reading changes no file


def test_the_committed_records_are_read():
    paths = list((ROOT / "results" / "reference").rglob("record.json"))
    assert paths
    for path in paths:
        assert record.load(path)["schema_version"] == record.SCHEMA_VERSION


@pytest.mark.parametrize(
    "edit",
    [
        lambda r: r.update(extra=1),
        lambda r: r.update(status="fine"),
        lambda r: r.pop("summary"),
        lambda r: r["summary"].pop("throughput_images_per_s"),
        lambda r: r["summary"].update(throughput_images_per_s=-1.0),
        lambda r: r["summary"].update(throughput_images_per_s="fast"),
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
    record.write_failure(tmp_path, CONFIG, {"machine": {}}, FAILURE)
    failed = record.load(tmp_path / "record.json")
    assert (failed["status"], failed["failure"], failed["samples"]) == ("failed", FAILURE, [])
    assert failed["config"]["num_devices"] == 2


def test_a_traceback_names_no_folder_of_this_machine(tmp_path):
    lines = [
        f'  File "{record.PROJECT}/bench/training/loop.py", line 3 in f',
        '  File "/home/jane/v/site-packages/torch/a.py", line 1',
    ]
    record.write_failure(tmp_path, CONFIG, {"machine": {}}, FAILURE | {"traceback": "\n".join(lines)})
    said = record.load(tmp_path / "record.json")["failure"]["traceback"]
    assert said == '  File "bench/training/loop.py", line 3 in f\n  File "site-packages/torch/a.py", line 1'


@pytest.mark.parametrize("change", [{"kind": "bored"}, {"rank": "one"}, {"traceback": None}])
def test_a_failure_that_says_nothing_useful_is_refused(tmp_path, change):
    with pytest.raises(record.BadRecord):
        record.write_failure(tmp_path, CONFIG, {}, FAILURE | change)
    assert list(tmp_path.iterdir()) == []


# --- Whole or not at all ------------------------------------------------------------------------------------------


@pytest.fixture
def with_old(tmp_path, good):
    """A folder that holds a record already; returns the folder and the old record's text."""
    record.save(tmp_path, good)
    return tmp_path, (tmp_path / "record.json").read_text()


def old_is_untouched(folder, old) -> bool:
    """Only the old record is there, as it was."""
    return [p.name for p in folder.iterdir()] == ["record.json"] and (folder / "record.json").read_text() == old


def test_a_record_is_replaced_whole(with_old, good):
    folder, _ = with_old
    good["run_id"] = "another"
    record.save(folder, good)
    assert record.load(folder / "record.json") == good
    assert [p.name for p in folder.iterdir()] == ["record.json"]


def test_a_write_that_fails_keeps_the_old_record(with_old, good, monkeypatch):
    folder, old = with_old

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError):
        record.save(folder, good)
    assert old_is_untouched(folder, old)


def test_a_value_that_json_has_not_keeps_the_old_record(with_old, good):
    folder, old = with_old
    good["environment"]["load"] = float("nan")
    with pytest.raises(ValueError):
        record.save(folder, good)
    assert old_is_untouched(folder, old)


def test_a_record_that_breaks_the_schema_is_not_written(with_old, good):
    folder, old = with_old
    del good["summary"]
    with pytest.raises(record.BadRecord):
        record.save(folder, good)
    assert old_is_untouched(folder, old)


# --- Records that somebody edited -----------------------------------------------------------------------------------


EDITS = {
    "summary/step_time_s": lambda r: r["summary"]["step_time_s"].update(median=0.001),
    "summary/throughput_images_per_s": lambda r: r["summary"].update(throughput_images_per_s=1e6),
    "summary/peak_memory_gib": lambda r: r["summary"]["peak_memory_gib"][0].update(pss=0.1),
    "topology/global_batch": lambda r: r["topology"].update(global_batch=999),
    "config/suite": lambda r: r["config"].update(suite=3),
    "config/device": lambda r: r["config"].pop("device"),
    "config/mode": lambda r: r["config"].update(mode="fsdp"),
    "config/colour": lambda r: r["config"].update(colour="red"),
    "config/tuned": lambda r: r["config"].update(tuned=1),
    "columns of rank 0": lambda r: r["samples"][0]["devices"][0]["timeline"]["time_s"].append(9.9),
    "environment": lambda r: r.update(environment={}),
}


@pytest.mark.parametrize("where", EDITS)
def test_an_edited_record_is_refused_by_the_name_of_what_does_not_fit(tmp_path, good, where):
    EDITS[where](good)
    assert where in refusal(write(tmp_path, good))
