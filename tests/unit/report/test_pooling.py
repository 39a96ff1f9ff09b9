"""bench/report/pooling.py and its picture: what stands side by side, what is left out, that nothing is lost."""

import argparse
import datetime
import math

import pandas as pd
import pytest
from scipy import stats as scipy_stats

from bench.analysis import drawing
from bench.cli.actions import pool as command
from bench.config.fields import base_type
from bench.config.options import FIELDS, PROGRAM, WORK, names
from bench.config.sections import Besides, Files, Resources
from bench.errors import UserError
from bench.record.view import Record
from bench.report import difference as diff
from bench.report import pool_figure as picture
from bench.report import pooling as pool
from tests import records
from tests.added import add_option
from tests.shown import text_of

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)


def suite(name: str, cpu_model: str = "Test(R) Processor 3.0", **common) -> list[Record]:
    """A comparison of three rounds on a machine with this processor."""
    found = records.suite_records("compare", records.compare_programs(), rounds=3, name=name, **common)
    return records.edited(found, lambda data: data["environment"]["machine"].update(cpu_model=cpu_model))


def runs(count: int, first: float = 0.0, **more) -> list[Record]:
    """So many runs of one program, one second apart."""
    return [records.record("ddp", 100.0 + i, seconds=first + i, **more) for i in range(count)]


def second_with(name: str, value) -> list[Record]:
    """Two runs, the second of which had another value of an option."""
    one, two = runs(2)
    return [one, *records.edited([two], lambda data: data["config"].update({name: value}))]


def sizes(found: list[Record]) -> list[int]:
    """How many records each group has."""
    return [group.n for panel in pool.panels_of(found) for group in panel.groups]


@pytest.fixture
def many():
    """Two CPU machines and a GPU machine."""
    return suite("0001") + suite("0002", "Other Processor") + suite("0003", device="cuda")


def test_cpu_and_gpu_never_share_a_panel(many):
    panels = pool.panels_of(many)
    assert [panel.device for panel in panels] == ["cpu", "cuda"]
    assert all(group.machine.device == panel.device for panel in panels for group in panel.groups)
    assert sum(panel.n for panel in panels) == len(many)


def test_workloads_never_share_a_panel():
    found = suite("0001") + suite("0002", image_size=32)
    panels = pool.panels_of(found)
    assert len(panels) == 2 and {"digits 16 px" in panel.workload for panel in panels} == {True, False}


def test_machines_are_told_apart_by_processor_gpu_and_versions(many):
    newer = records.edited(suite("0004"), lambda data: data["environment"]["versions"].update(torch="2.10.0"))
    called = pool.machines_of(pool.panels_of(many + newer))
    assert sorted(called.values()) == ["M1", "M2", "M3", "M4"]
    lines = "\n".join(machine.line() for machine in called)
    assert all(word in lines for word in ("Other Processor", "Test GPU 80GB", "torch 2.10.0", "CPU only"))


def test_one_machine_with_few_or_many_gpus_in_use_is_one_machine():
    found = [records.record("ddp", num_devices=n, device="cuda", seconds=n) for n in (1, 2, 4)]
    assert len({pool.machine_of(record) for record in found}) == 1


def test_runs_with_other_numbers_of_threads_are_never_averaged_together():
    found = runs(2)
    more = records.edited(runs(3, first=10), lambda data: data["topology"].update(threads_total=4))
    ((few, many),) = [panel.groups for panel in pool.panels_of([*more, *found])]
    assert (few.title, few.n, few.threads) == ("ddp 2, 2 threads", 2, 2)
    assert (many.title, many.n, many.threads) == ("ddp 2, 4 threads", 3, 4)
    said = text_of(picture.draw(pool.panels_of([*more, *found])))
    assert "ddp 2, 4 threads (n = 3)" in said
    assert pool.panels_of(found)[0].groups[0].title == "ddp 2"


def other_value(field, value):
    """Another value of an option, of its type."""
    if field.metadata["choices"]:
        return next(choice for choice in field.metadata["choices"] if choice != value)
    kind = base_type(field)
    return not value if kind is bool else "other" if kind is str else (value or 0) + 1


OF_THE_RUN = sorted({*names(*WORK, *PROGRAM)} - {"device", "launcher", "per_device_batch", "seed"})


@pytest.mark.parametrize("name", OF_THE_RUN)
def test_runs_that_differ_in_their_work_or_their_program_are_never_averaged_together(name):
    value = getattr(records.record("ddp").config, name)
    assert sizes(second_with(name, other_value(FIELDS[name], value))) == [1, 1]


@pytest.mark.parametrize("section", [*WORK, *PROGRAM])
def test_an_option_that_is_added_tells_runs_apart_without_a_word_in_the_report(monkeypatch, section):
    add_option(monkeypatch, section, pool, diff)
    found = second_with("made_up", 1)
    assert sizes(found) == [1, 1] and sizes(second_with("made_up", 0)) == [2]
    with pytest.raises(UserError, match=r"made_up|no program in common"):
        diff.compare_sets(found[:1], found[1:])


@pytest.mark.parametrize("name", names(Resources, Files, Besides))
def test_what_changes_neither_work_nor_program_parts_nothing(name):
    value = getattr(records.record("ddp").config, name)
    assert sizes(second_with(name, other_value(FIELDS[name], value))) == [2]


def test_a_machine_that_does_not_say_what_it_is():
    (record,) = records.edited(runs(1), lambda data: data["environment"].update(machine={"ram_gib": None}))
    assert "unknown CPU" in pool.machine_of(record).line()


def test_the_interval_is_students_t_on_logarithms():
    speeds = [100.0, 104.0, 98.0, 101.0]
    found = [records.record("ddp", speed, seconds=i) for i, speed in enumerate(speeds)]
    ((group,),) = [panel.groups for panel in pool.panels_of(found)]
    logs = [math.log(record.throughput) for record in found]
    expected = scipy_stats.t.interval(0.95, 3, loc=sum(logs) / 4, scale=scipy_stats.sem(logs))
    assert group.interval == pytest.approx([math.exp(x) for x in expected])
    assert group.mean == pytest.approx(scipy_stats.gmean(speeds))
    assert pool.panels_of(found[:1])[0].groups[0].interval is None


def test_a_copy_counts_once_and_copies_that_do_not_agree_are_left_out():
    found = suite("0001")
    (edited,) = records.edited(found[:1], lambda data: data["summary"].update(throughput_per_s=1.0))
    (copy,) = records.edited(found[1:2], lambda data: None)
    kept, said = pool.once([*found, copy, edited])
    assert [r.run_id for r in kept] == [r.run_id for r in found[1:]]
    assert any(found[0].run_id in line and "refused" in line for line in said)
    assert any("1 copies" in line for line in said)


def test_a_copy_in_another_folder_is_a_copy(tmp_path):
    for name in ("one", "two"):
        records.store(tmp_path / name, runs(2))
    kept, (said,) = pool.pool(tmp_path)
    assert len(kept) == 2 and "2 copies" in said


def test_bad_files_are_named_and_the_rest_used(tmp_path, many):
    folder = records.store(tmp_path, [*many, records.record("ddp", failed="killed", seconds=9e6)])
    (folder / "bad").mkdir()
    (folder / "bad" / "record.json").write_text('{"schema_version": 99}')
    found, said = pool.pool(folder)
    assert len(found) == len(many)
    assert any("bad/record.json" in line and "99" in line for line in said)
    assert any("1 failed, profiled or interrupted runs" in line for line in said)


def test_a_folder_with_nothing_to_pool_is_one_clear_line(tmp_path):
    for folder in (tmp_path / "missing", tmp_path):
        with pytest.raises(UserError):
            pool.pool(folder)
    with pytest.raises(UserError, match="can be pooled"):
        pool.pool(records.store(tmp_path / "failed", [records.record("ddp", failed="killed")]))


def test_a_new_folder_every_time(tmp_path):
    made = {pool.new_folder(tmp_path / "out", NOW).name for _ in range(3)}
    assert len(made) == 3 and all(name.startswith("pool-20260102-030405-") for name in made)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="OUT="):
        pool.new_folder(tmp_path / "file", NOW)


def test_the_command_leaves_the_records_alone(tmp_path, capsys, many):
    folder = records.store(tmp_path / "in", many)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    asked = argparse.Namespace(records=str(folder), out=str(tmp_path / "out"))
    assert [command.run(asked) for _ in range(2)] == [0, 0]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    out = capsys.readouterr().out
    last = out.splitlines()[-1]
    made = tmp_path / "out" / last.rpartition("/")[2]
    assert last == f"pool: {made}" and len(list((tmp_path / "out").iterdir())) == 2
    assert sorted(path.name for path in made.iterdir()) == ["pool.csv", "pool.svg"]
    assert len(pd.read_csv(made / "pool.csv")) == len(many)
    assert "CPU: resnet18" in out and "GPU: resnet50" in out and "n = 30" in out


def test_the_picture_names_machines_n_and_what_a_device_is(many):
    figure = picture.draw(pool.panels_of(many))
    said = text_of(figure)
    assert len(figure.axes) == 2
    assert "n = 45 records" in said and "3 machines" in said
    assert "no GPU used: N CPU workers stand for N devices" in said and "ddp 2 (n = 3)" in said
    assert "lr 0.05, momentum 0.9" in said
    assert "Other Processor" in said and "Test GPU 80GB" in said and "torch 2.9.0" in said


def test_programs_with_options_are_left_to_the_table():
    knobs = [records.record("ddp", 90.0, seconds=10 + i, bucket_cap_mb=float(i + 1)) for i in range(3)]
    said = text_of(picture.draw(pool.panels_of([*knobs, records.record("ddp")])))
    assert "bucket_cap_mb" not in said and "3 more rows" in said
    assert "bucket_cap_mb" in text_of(picture.draw(pool.panels_of(knobs)))


def test_a_single_record_can_be_drawn(tmp_path):
    figure = picture.draw(pool.panels_of([records.record("ddp")]))
    assert "n = 1 record" in text_of(figure)
    drawing.save(figure, tmp_path, "one")


def test_very_many_machines_and_workloads_still_make_one_picture():
    def other_machine(data: dict) -> None:
        data["environment"]["machine"]["cpu_model"] = f"Processor {data['run_id'][:15]}"

    found = records.edited(runs(70), other_machine)
    found += [records.record("ddp", batch=8 * i, seconds=1000 + i) for i in range(1, 10)]
    figure = picture.draw(pool.panels_of(found))
    assert len(figure.axes) == picture.MOST_PANELS
    assert "more rows" in text_of(figure)
    assert drawing.svg_of(figure)
