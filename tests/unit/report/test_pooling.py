"""bench/report/pooling.py and its picture: what stands side by side, what is omitted, that nothing is lost."""

import argparse
import math

import pandas as pd
import pytest
import scipy

from bench.analysis import drawing
from bench.cli.actions import pool as command
from bench.config.fields import base_type
from bench.config.options import FIELDS, PROGRAM, WORK, names
from bench.config.sections import Extras, Files, Resources
from bench.errors import UserError
from bench.record.view import Record
from bench.report import difference as diff
from bench.report import pool_figure as picture
from bench.report import pooling as pool
from tests import records
from tests.runs import refuses


def suite(name: str, cpu_model: str = "Test(R) Processor 3.0", **common) -> list[Record]:
    found = records.suite_records("compare", rounds=3, name=name, **common)
    return records.edited(found, lambda data: data["environment"]["machine"].update(cpu_model=cpu_model))


def runs(count: int, first: float = 0.0, **more) -> list[Record]:
    return [records.record("ddp", 100.0 + i, seconds=first + i, **more) for i in range(count)]


def second_with(name: str, value) -> list[Record]:
    """Two runs, the second of which had another value of an option."""
    one, two = runs(2)
    return [one, *records.edited([two], lambda data: data["config"].update({name: value}))]


def sizes(found: list[Record]) -> list[int]:
    return [group.n for panel in pool.panels_of(found) for group in panel.groups]


@pytest.fixture
def many():
    return suite("0001") + suite("0002", "Other Processor") + suite("0003", device="cuda")


def test_devices_and_workloads_never_share_a_panel(many):
    panels = pool.panels_of(many)
    assert [panel.device for panel in panels] == ["cpu", "cuda"]
    assert all(group.machine.device == panel.device for panel in panels for group in panel.groups)
    assert sum(panel.n for panel in panels) == len(many)
    assert len(pool.panels_of(suite("0001") + suite("0002", image_size=32))) == 2


def test_machines_are_told_apart_by_processor_gpu_and_versions(many):
    newer = records.edited(suite("0004"), lambda data: data["environment"]["versions"].update(torch="2.10.0"))
    called = pool.machines_of(pool.panels_of(many + newer))
    assert sorted(called.values()) == ["M1", "M2", "M3", "M4"]
    lines = "\n".join(machine.line() for machine in called)
    assert all(word in lines for word in ("Other Processor", "Test GPU 80GB", "torch 2.10.0"))
    some_in_use = [records.record("ddp", num_devices=n, device="cuda", seconds=n) for n in (1, 2, 4)]
    assert len({pool.machine_of(record) for record in some_in_use}) == 1
    (unknown,) = records.edited(runs(1), lambda data: data["environment"].update(machine={"ram_gib": None}))
    assert pool.machine_of(unknown).line()


def test_runs_with_other_numbers_of_threads_are_never_averaged_together():
    found = runs(2)
    more = records.edited(runs(3, first=10), lambda data: data["topology"].update(threads_total=4))
    ((few, many),) = [panel.groups for panel in pool.panels_of([*more, *found])]
    assert (few.title, few.n, few.threads) == ("ddp 2, 2 threads", 2, 2)
    assert (many.title, many.n, many.threads) == ("ddp 2, 4 threads", 3, 4)
    assert pool.panels_of(found)[0].groups[0].title == "ddp 2"


def other_value(field, value):
    if field.metadata["choices"]:
        return next(choice for choice in field.metadata["choices"] if choice != value)
    kind = base_type(field)
    return not value if kind is bool else "other" if kind is str else (value or 0) + 1


def test_runs_that_differ_in_their_work_or_their_program_are_never_averaged_together():
    """Nor are they compared: a line names what differs."""
    of_the_run = {*names(*WORK, *PROGRAM)} - {"device", "launcher", "per_device_batch", "seed"}
    of_nothing, usual = names(Resources, Files, Extras), records.record("ddp").config
    found = {name: sizes(second_with(name, other_value(FIELDS[name], getattr(usual, name))))
             for name in (*of_the_run, *of_nothing)}  # fmt: skip
    assert found == {name: [2] if name in of_nothing else [1, 1] for name in found}
    for name in of_the_run - {"mode", "num_devices"}:
        one, two = second_with(name, other_value(FIELDS[name], getattr(usual, name)))
        with refuses(name):
            diff.compare_sets([one], [two])


def test_the_interval_is_students_t_on_logarithms():
    speeds = [100.0, 104.0, 98.0, 101.0]
    found = [records.record("ddp", speed, seconds=i) for i, speed in enumerate(speeds)]
    ((group,),) = [panel.groups for panel in pool.panels_of(found)]
    logs = [math.log(record.throughput) for record in found]
    expected = scipy.stats.t.interval(0.95, 3, loc=sum(logs) / 4, scale=scipy.stats.sem(logs))
    assert group.interval == pytest.approx([math.exp(x) for x in expected])
    assert group.mean == pytest.approx(scipy.stats.gmean(speeds))
    assert pool.panels_of(found[:1])[0].groups[0].interval is None


def test_a_copy_counts_once_and_copies_that_do_not_agree_are_left_out(tmp_path):
    found = suite("0001")
    (edited,) = records.edited(found[:1], lambda data: data["summary"].update(throughput_per_s=1.0))
    (copy,) = records.edited(found[1:2], lambda data: None)
    kept, said = pool.once([*found, copy, edited])
    assert [r.run_id for r in kept] == [r.run_id for r in found[1:]]
    assert len(said) == 2 and any(found[0].run_id in line for line in said)
    for name in ("one", "two"):
        records.store(tmp_path / name, runs(2))
    kept, said = pool.pool(tmp_path)
    assert len(kept) == 2 and len(said) == 1


def test_bad_files_are_named_and_the_rest_used(tmp_path, many):
    folder = records.store(tmp_path / "in", [*many, records.record("ddp", failed="killed", seconds=9e6)])
    (folder / "bad").mkdir()
    (folder / "bad" / "record.json").write_text('{"schema_version": 99}')
    found, said = pool.pool(folder)
    assert len(found) == len(many) and len(said) == 2
    assert any("bad/record.json" in line and "99" in line for line in said)
    failed = records.store(tmp_path / "failed", [records.record("ddp", failed="killed")])
    for nothing in (tmp_path / "missing", tmp_path / "in" / "bad", failed):
        with pytest.raises(UserError):
            pool.pool(nothing)


def test_the_command_makes_a_new_folder_and_leaves_the_records_alone(tmp_path, capsys):
    folder = records.store(tmp_path / "in", runs(3))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    asked = argparse.Namespace(records=str(folder), out=str(tmp_path / "out"))
    assert [command.run(asked) for _ in range(2)] == [0, 0]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    last = capsys.readouterr().out.splitlines()[-1]
    made = tmp_path / "out" / last.rpartition("/")[2]
    assert last == f"pool: {made}" and len(list((tmp_path / "out").iterdir())) == 2
    assert sorted(path.name for path in made.iterdir()) == ["pool.csv", "pool.svg"]
    assert len(pd.read_csv(made / "pool.csv")) == 3
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="OUT="):
        command.run(argparse.Namespace(records=str(folder), out=str(tmp_path / "file")))


def test_one_record_and_very_many_machines_and_workloads_make_one_picture(monkeypatch):
    monkeypatch.setattr(picture, "MOST_ROWS", 20)
    assert drawing.svg_of(picture.draw(pool.panels_of([records.record("ddp")])))

    def other_machine(data: dict) -> None:
        data["environment"]["machine"]["cpu_model"] = f"Processor {data['run_id'][:15]}"

    found = records.edited(runs(25), other_machine)
    found += [records.record("ddp", batch=8 * i, seconds=1000 + i) for i in range(1, 10)]
    figure = picture.draw(pool.panels_of(found))
    assert len(figure.axes) == picture.MOST_PANELS and len(figure.axes[0].get_yticks()) == picture.MOST_ROWS
    assert drawing.svg_of(figure)
