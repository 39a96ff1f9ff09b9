"""bench/analysis/tables.py and bench/record/describe.py: tables of a terminal, and what is said when a few long steps
moved a mean."""

import pytest
from rich.console import Console

from bench.analysis import tables
from bench.analysis.comparison import compare_suite
from bench.analysis.suite import suites_of
from bench.cli.actions.run_output import print_run
from bench.record import describe
from bench.record.view import Record
from bench.report.page import page
from bench.studies.base import Study
from bench.studies.registry import study_of
from tests import records


def run(mode: str, median_s: float, longest_s: float | None = None, **options) -> Record:
    """A record of one run of ten steps of 128 images, one of which may be long."""

    def timed(data: dict) -> None:
        for part in data["samples"]:
            part["step_time_s"] = [median_s] * 9 + [longest_s or median_s]
            part |= {"phase_time_s": {}, "data_wait_s": [0.0] * 10}
        records.summarise_again(data)

    (made,) = records.edited([records.record(mode, **options)], timed)
    return made


def shown(draw, *arguments) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        draw(console, *arguments)
    return " ".join(capture.get().split())


def printed(record, baselines) -> str:
    return shown(print_run, record, baselines)


@pytest.fixture
def ddp():
    return run("ddp", 1.075, num_devices=4)


def test_one_long_step_that_turned_a_ratio_round_is_named_with_both_ratios(ddp):
    """As seen: single at 615 ms per step, but for one of 3.25 s and a half, printed as slower than ddp at 1,075 ms."""
    turned = printed(ddp, [run("single", 0.615, 6.5, num_devices=1, batch=128)])
    assert "1.75 ?" in turned and "1.96 × the median" in turned and "6.50 s" in turned
    kept = printed(ddp, [run("single", 0.615, 3.25, num_devices=1, batch=128)])
    assert "warning: single" in kept and " ?" not in kept
    quiet = printed(ddp, [run("single", 0.615, num_devices=1, batch=128), run("independent", 0.9, num_devices=4)])
    assert "warning" not in quiet and "?" not in quiet and "1.75" in quiet
    assert "warning: ddp" in printed(run("ddp", 1.0, 5.0, num_devices=2), [])
    long = run("single", 1.075, 10.75, num_devices=1, batch=128)  # halves its mean throughput, and moves no ratio
    grid = tables.runs_grid([ddp, long], ddp)
    assert long.throughput / ddp.throughput == pytest.approx(10 / 19) and [row[-1] for row in grid.rows] == ["1.00"] * 2


COUNTED = {"flops_per_example": 24.3e9}


def test_tflops_and_mfu_are_shown_as_far_as_they_are_known():
    def cells(name: str = "Test GPU", facts: dict | None = COUNTED, **options) -> tuple[dict, str]:
        made = records.record("ddp", throughput=1000.0, num_devices=2, device="cuda", facts=facts, **options)
        (made,) = records.edited([made], lambda data: [gpu.update(name=name) for gpu in data["environment"]["devices"]])
        (row,) = (grid := tables.runs_grid([made])).rows
        head = [name.split()[0] for name, _ in grid.head]
        shown = {name: cell for name, cell in zip(head, row, strict=True) if name in ("TFLOP/s", "MFU", "HFU")}
        return shown, printed(made, [])

    unknown, said = cells()
    assert unknown == {"TFLOP/s": "12.2"} and said.count("MFU") == 1 and "PEAK_TFLOPS" in said and "24.3 GFLOP" in said
    assert cells(peak_tflops=24.3)[0] == {"TFLOP/s": "12.2", "MFU": "50.0 %"}
    table, said = cells("NVIDIA H100 80GB HBM3", precision="bf16")
    assert table == {"TFLOP/s": "12.2", "MFU": "1.2 %"} and "989.5" in said
    assert cells("NVIDIA H100 80GB HBM3", precision="tf32")[0]["MFU"] == "2.5 %"
    table, said = cells(facts={}, peak_tflops=24.3)
    assert table == {} and "FLOP" not in said
    table, said = cells(facts=COUNTED | {"hardware_flops_per_example": 32.4e9}, peak_tflops=24.3)
    assert table == {"TFLOP/s": "12.2", "MFU": "50.0 %", "HFU": "66.7 %"} and "32.4" in said
    gpt = {"device": "cuda", "model": "gpt", "data": "stdlib", "context": 100, "peak_tflops": 1.0}
    old = records.record("ddp", throughput=10.0, num_devices=2, facts={"flops_per_token": 8e8}, **gpt)
    assert describe.utilization(old)["tflops"] == pytest.approx(old.throughput / 2 * 8e8 / 1e12)


def test_a_comparison_shows_tflops_and_mfu_of_each_program():
    programs = records.compare_programs(single=100.0, ddp=200.0)
    found = compare_suite(records.suite("compare", programs, facts=COUNTED, peak_tflops=4.86))
    for grid in (tables.comparison_grid(found), tables.programs_grid(found.suite, "")):
        rows = {row[0]: row[-2:] for row in grid.rows}
        assert [name.split()[0] for name, _ in grid.head][-2:] == ["TFLOP/s", "MFU"]
        assert rows["single"] == ["2.43", "50.0 %"] == rows["ddp"]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_table_wider_than_its_place_keeps_every_cell(is_terminal):
    """A narrow terminal, or a file: headings are broken, the words of a cell may be, a number with its interval not."""
    suite = records.suite("compare")
    (grid, *_) = study_of(suite).summary(compare_suite(suite))
    console = Console(width=40, force_terminal=is_terminal, color_system=None)
    with console.capture() as capture:
        tables.print_grid(console, grid)
    lines = capture.get().splitlines()
    for row in grid.rows:
        assert all(word in capture.get() for word in row[0].split()), capture.get()
        numbers = [cell for cell, (_, number) in zip(row, grid.head, strict=True) if number]
        assert any(all(cell in line for cell in numbers) for line in lines), capture.get()


def test_what_was_unfair_comes_first_and_is_flagged():
    programs = records.compare_programs()
    programs["ddp"]["compression"] = "fp16"
    result = compare_suite(records.suite("compare", programs, rounds=4))
    said = shown(tables.print_certificate, result.certificate)
    assert "NOT A FAIR COMPARISON: gradient compression" in said and "fp16" in said
    unequal, equal = tables.certificate_grids(result.certificate)
    assert unequal.rows[0][:2] == ["gradient compression", "differs"]
    assert {row[0] for row in [*unequal.rows, *equal.rows]} == {fact.name for fact in result.certificate.facts}
    rows = {row[0]: row for row in tables.comparison_grid(result).rows}
    assert list(rows) == list(programs) and [name for name, row in rows.items() if "(unfair)" in row[-2]] == ["ddp"]
    on_gpus = compare_suite(records.suite("compare", programs, rounds=4, device="cuda"))
    for grid in (tables.comparison_grid(on_gpus), tables.programs_grid(on_gpus.suite, "")):  # their energy was recorded
        assert "J per" in grid.head[-1][0] and all(float(row[-1]) > 0 for row in grid.rows)
    pairs = tables.pairs_grid(compare_suite(result.suite, all_pairs=False)).rows
    assert [row[0] for row in pairs] == [f"{label} / single" for label in programs if label != "single"]


def test_a_verdict_that_stands_alone_and_not_together_is_told():
    """Ten pairs; of those with noise one is just shown at 95 %, which is not enough among ten. A single pair needs no
    more than its own verdict."""
    noise = [1.00, 1.05, 0.96, 1.02, 0.99, 1.04, 0.97, 1.01]
    speeds = {"single": 100.0, "dp": [100 * x for x in noise], "ddp": [103 * x for x in noise[::-1]]}
    programs = records.compare_programs(**speeds | {"horovod": 60.0, "independent": 150.0})
    result = compare_suite(records.suite("compare", programs, rounds=8))
    rows = {row[0]: row for row in tables.pairs_grid(result).rows}
    assert rows["ddp / single"][-2:] == ["faster", "no"] and rows["horovod / single"][-2:] == ["slower", "yes"]
    assert rows["ddp / dp"][-2:] == ["no difference", ""]
    assert "7 of 8" in result.holm_summary() and "ddp / single" in result.holm_summary()
    two = {mode: programs[mode] for mode in ("single", "ddp")}
    alone = compare_suite(records.suite("compare", two, rounds=8))
    assert tables.pairs_grid(alone).rows[0][-2:] == ["faster", "yes"] and alone.holm_summary() == ""


FIRST = {"weights": 0.1, "optimizer state": 0.1, "activations": 5.0, "context, libraries": 0.5}
OTHER = {"replicas": 0.1, "activations": 5.0, "context, libraries": 0.5}


def with_parts(record: Record, *parts: dict, note: str = "") -> Record:
    def change(data: dict) -> None:
        devices = [device for part in data["samples"] for device in part["devices"]]
        for device, gib in zip(devices, parts, strict=True):
            device["memory_parts"] = {"gib": gib, "source": "a history", "notes": [note] if note else []}

    return records.edited([record], change)[0]


def test_a_run_on_gpus_shows_what_fills_each_and_why_device_0_is_fuller(monkeypatch):
    """After the run, and on the page; a record without parts shows none."""
    without = run("dp", 0.1, device="cuda", num_devices=2)
    found = with_parts(without, FIRST, OTHER, note="other processes: unknown")
    text = printed(found, [])
    assert "weights 0.100 optimizer state 0.100 replicas 0.100 activations 5.000 5.000" in text
    assert "sum 5.700 5.600" in text and "other processes: unknown" in text
    assert "0.100 GiB more" in text and "weights +0.100" in text and "replicas -0.100" in text
    monkeypatch.setattr(Study, "figures", lambda self, result: {})
    some = records.suite_records("compare", rounds=3, device="cuda")
    some = [with_parts(record, *2 * [FIRST]) if record.program == "ddp" else record for record in some]
    pages = [page([], [found], []), page(suites_of(some), [], []), page([], [without], [])]
    assert ["optimizer state" in each for each in pages] == [True, True, False]
    assert "optimizer state" not in printed(without, [])


def test_single_runs_name_the_options_in_which_they_differ():
    """As seen on an H100: runs in bf16 and fp16, or of ranks that share a GPU, looked the same."""
    usual = {"device": "cuda", "precision": "bf16", "plain": False, "channels_last": True}
    runs = [
        records.record("single", num_devices=1, **usual),
        records.record("single", num_devices=1, **usual | {"precision": "fp16", "channels_last": False}),
        records.record("ddp", **usual | {"share_gpu": True, "accumulate": 2}),
        records.record("single", num_devices=1, **usual),
        records.record("ddp", device="cuda", plain=True, precision="fp32", failed="killed", share_gpu=True),
    ]
    grid = tables.single_runs_grid(runs)
    names = [name for name, _ in grid.head]
    given = [row[names.index("options")] for row in grid.rows]
    assert given == ["bf16", "fp16 channels_last=0", "bf16 accumulate=2", "bf16", "fp32"]
    assert [row[names.index("devices")] for row in grid.rows] == ["1", "1", "2 on one GPU", "1", "2 on one GPU"]
    assert {len(row) for row in grid.rows} == {len(names)}
    assert all(name != "options" for name, _ in tables.single_runs_grid([runs[0], runs[3]]).head)
