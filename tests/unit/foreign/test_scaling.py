"""One script on several numbers of devices: `bench diff` and `bench report` of made-up records with known numbers."""

import pytest

from bench import __main__ as cli
from bench.foreign import scaling
from bench.foreign.record import find
from bench.record.read import find_records
from tests import foreigners, records


def timed(
    folder, ranks: int, step_s: list[float], wait_s: list[float], batch: int | None, number: int = 1, script: str = "",
    **known,
):  # fmt: skip
    """Write a record. step_s, wait_s: by rank, the same in every step. script: its arguments."""
    made = foreigners.data(ranks=ranks, batch=batch, number=10 * ranks + number, **known)
    for part, step, wait in zip(made["samples"], step_s, wait_s, strict=True):
        part["step_time_s"], part["data_wait_s"] = [step] * 20, [wait] * 20
    made["command"] += f" {script}"
    return foreigners.write(folder, made)


def one(folder, batch: int | None = 16, **known):
    return timed(folder, 1, [0.1], [0.01], batch, **known)


def two(folder, batch: int | None = 32, step_s: float = 0.125, **known):
    return timed(folder, 2, [step_s, step_s - 0.01], [0.01, 0.0225], batch, **known)


def diff(tmp_path, *flags: str) -> int:
    return cli.main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), *flags])


def cells(out: str, devices: int) -> list[str]:
    engines = ["DistributedDataParallel"], ["DistributedDataParallel,"]
    rows = [line.split() for line in out.splitlines() if line.split()[1:2] in engines]
    (row,) = [row for row in rows if row[0] == str(devices)]
    return row


def shown(tmp_path, capsys, *values: str) -> str:
    assert diff(tmp_path) == 0
    out = capsys.readouterr().out
    assert [value for value in values if value not in out] == []
    return out


def test_weak_scaling_by_known_numbers(tmp_path, capsys):
    """160 and 256 examples/s; 25 ms more a step: 12.5 wait for data, 5 imbalance (125 and 115 ms), 7.5 rest. A bound is
    not judged on other numbers of devices."""
    one(tmp_path / "a"), two(tmp_path / "b")
    out = shown(tmp_path, capsys, "16 examples per device", "125.00 ms", "100.00 ms")
    assert cells(out, 1)[2:] == ["1", "×", "1", "160.0", "100.00", "base", "100", "%", "10", "%", "0", "%", "1"]
    assert cells(out, 2)[2:] == ["2", "×", "1", "256.0", "125.00", "×1.60", "80", "%", "20", "%", "4", "%", "1"]
    assert out.index("+12.50 ms") < out.index("+7.50 ms") < out.index("+5.00 ms") and "differs" not in out
    assert diff(tmp_path, "--bound=5") == 2
    said = capsys.readouterr()
    assert "×1.60" in said.out and "BOUND=5" in said.err and said.err.count("\n") == 1


def test_strong_scaling_by_known_numbers(tmp_path, capsys):
    """320 and 512 examples/s; 50 ms would be linear, of them 5 ms of waiting: 17.5 ms more wait, 5 imbalance."""
    one(tmp_path / "a", 32), two(tmp_path / "b", 32, 0.0625)
    out = shown(tmp_path, capsys, "32 examples per step", "50.00 ms", "+17.50 ms", "+5.00 ms")
    assert cells(out, 2)[5:10] == ["512.0", "62.50", "×1.60", "80", "%"]


@pytest.mark.parametrize(("step_s", "explained"), [(0.099, True), (0.05, False)])
def test_more_than_linear_is_explained_as_far_as_the_parts_explain_it(tmp_path, capsys, step_s, explained):
    one(tmp_path / "a"), two(tmp_path / "b", step_s=step_s)
    assert ("does not explain" in shown(tmp_path, capsys, "100.00 ms")) != explained


def test_without_a_batch_it_is_steps(tmp_path, capsys):
    one(tmp_path / "a", None), two(tmp_path / "b", None)
    assert cells(shown(tmp_path, capsys, "steps/s"), 2)[5:8] == ["8.0", "125.00", "×1.60"]


@pytest.mark.parametrize("runs", [2, 3])
def test_an_interval_needs_three_runs_a_side(tmp_path, capsys, runs):
    for number in range(runs):
        one(tmp_path / "a", number=number), two(tmp_path / "b", number=number)
    out = shown(tmp_path, capsys, "×1.60 ")
    assert ("×1.60 [1.60 to 1.60]" in out) == (runs == 3) and cells(out, 2)[-1] == str(runs)


def test_a_disturbed_run_keeps_its_numbers_and_gets_the_label(tmp_path, capsys):
    one(tmp_path / "a")
    made = foreigners.data(others=0.5)
    for part in made["samples"]:
        part["watch_s"] = [0.25 * seconds for seconds in part["step_time_s"]]
    foreigners.write(tmp_path / "b", made)
    shown(tmp_path, capsys, "50 %", "25 %")
    (found,) = scaling.find(find(tmp_path)[0])
    grid = scaling.grid(found)
    assert grid.grey == {1} and grid.rows[1][1] == "DistributedDataParallel, disturbed"
    assert grid.rows[1][5].startswith("×")


def test_the_report_and_its_page_show_it_beside_runs(tmp_path, capsys):
    one(tmp_path), two(tmp_path), timed(tmp_path, 4, [0.2] * 4, [0.0] * 4, 64)
    foreigners.write(tmp_path, foreigners.data("other.py", others=0.6))
    assert len(find(tmp_path)[0]) == 4 and find_records(tmp_path, needed=False) == ([], [])  # they are not runs
    records.store(tmp_path, [records.record("ddp")])
    assert cli.main(["report", str(tmp_path)]) == 0
    out, page = capsys.readouterr().out, (tmp_path / "report.html").read_text()
    assert all(text in out for text in ("train.py on 1, 2 and 4", "other.py", "ddp", "60 %", "no-reshuffle"))
    assert cells(out, 4)[5:10] == ["320.0", "200.00", "×2.00", "50", "%"] and "×1.60" in page and "other.py" in page


@pytest.mark.parametrize(("first", "second", "same"), [
    ("--gpus 1 --lr=0.1", "--gpus 2 --lr=0.2", True),
    ("--devices 0 --batch 32", "--devices 0,1 --batch 16", True),
    ('"', '"', True),  # somebody has edited it
    ("--lr=0.1", "--lr=0.3", False),
    ("", "--ddp", False),
])  # fmt: skip
def test_arguments_that_differ_are_compared_only_where_it_is_asked_for_and_named(tmp_path, capsys, first, second, same):
    one(tmp_path / "a", script=first), two(tmp_path / "b", script=second)
    assert cli.main(["report", str(tmp_path)]) == 0
    assert ("×1.60" in capsys.readouterr().out) == same
    out = shown(tmp_path, capsys, "×1.60")
    assert ("arguments differ" in out) == (not same) and (same or second in out)


def test_another_text_is_compared_and_named_and_the_same_text_comes_first(tmp_path, capsys):
    one(tmp_path / "a", sha="a" * 64), two(tmp_path / "b", sha="b" * 64)
    for again in (False, True):
        out = shown(tmp_path, capsys)
        assert ("text differs" in out) != again and cells(out, 1)[-1] == "1"
        one(tmp_path / "a", sha="b" * 64, number=2)


def on_another_processor() -> dict:
    made = foreigners.data()
    made["environment"]["machine"]["cpu_model"] = "Other"
    return made


@pytest.mark.parametrize("made", [
    foreigners.data(batch=64), foreigners.data("other.py"), on_another_processor(),
    foreigners.data(ranks=1, batch=16) | {"engine": "Horovod"},
], ids=["batch", "name", "processor", "engine"])  # fmt: skip
def test_with_nothing_to_compare_it_ends_with_2_and_one_line_unless_there_are_runs(tmp_path, capsys, made):
    one(tmp_path / "a")
    foreigners.write(tmp_path / "b", made)
    for flags in ((), ("--bound=5",), ("--bound=5", "--strict=1")):
        assert diff(tmp_path, *flags) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1 and "1 × cpu" in said.err and "batch 16" in said.err
    for side in "ab":
        records.store(tmp_path / side, [records.record("ddp", 100.0)])
    shown(tmp_path, capsys, "train.py", "ddp")


def test_engines_and_threads_of_one_number_of_devices_stay_apart(tmp_path):
    """The base is the faster one of the two on one device."""
    slow = foreigners.data(ranks=1, batch=16, step_s=0.2)
    foreigners.write(tmp_path, slow | {"engine": "one process"})
    one(tmp_path, number=2), two(tmp_path)
    (found,) = scaling.find(find(tmp_path)[0])
    ddp = "DistributedDataParallel"
    assert [(arm.devices, arm.first["engine"]) for arm in found.arms] == [(1, ddp), (1, "one process"), (2, ddp)]
    assert found.base is found.arms[0] and found.speedup(found.arms[1])[0] == pytest.approx(0.5)
    assert found.efficiency(found.arms[2]) == (pytest.approx(80), None, None)
