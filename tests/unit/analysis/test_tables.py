"""bench/analysis/tables.py and bench/record/describe.py: tables of a terminal, and what is said when a few long steps
moved a mean."""

import pytest
from rich.console import Console

from bench.analysis import tables
from bench.analysis.comparison import compare_suite
from bench.analysis.suite import suites_of
from bench.cli.actions.run_output import print_run
from bench.record.describe import memory_cell
from bench.record.summary import summarise
from bench.record.view import Record
from bench.studies.registry import study_of
from tests import records


def run(mode: str, median_s: float, longest_s: float | None = None, **options) -> Record:
    """A record of one run of ten steps of 128 images, one of which may be long."""

    def timed(data: dict) -> None:
        for part in data["samples"]:
            part["step_time_s"] = [median_s] * 9 + [longest_s or median_s]
            part |= {"phase_time_s": {}, "data_wait_s": [0.0] * 10}
        data["summary"] = summarise(mode, data["topology"]["global_batch"], data["samples"])

    (made,) = records.edited([records.record(mode, **options)], timed)
    return made


def shown(draw, *arguments) -> str:
    """What a person sees in a wide terminal, in one line."""
    console = Console(width=200)
    with console.capture() as capture:
        draw(console, *arguments)
    return " ".join(capture.get().split())


def printed(record, baselines) -> str:
    """What a person sees after a run."""
    return shown(print_run, record, baselines)


@pytest.fixture
def ddp():
    """A quiet run of 1075 ms per step on four devices."""
    return run("ddp", 1.075, num_devices=4)


def test_a_ratio_that_one_long_step_turned_round_says_so(ddp):
    """As seen: single at 615 ms per step, but for one of 3.25 s and a half, printed as slower than ddp at 1,075 ms."""
    single = run("single", 0.615, 6.5, num_devices=1, batch=128)
    text = printed(ddp, [single])
    assert "1.75 ?" in text and "× this run compares median steps" in text
    assert "single had uneven steps: the mean is 1.96 × the median" in text and "6.50 s" in text
    assert "which of single and ddp is faster cannot be said" in text and "at 1.75 by the median steps" in text


def test_a_disturbed_run_is_named_where_the_order_stays_what_it_was(ddp):
    text = printed(ddp, [run("single", 0.615, 3.25, num_devices=1, batch=128)])
    assert "single had uneven steps" in text and "cannot be said" not in text and " ?" not in text


def test_the_ratio_of_two_runs_is_not_moved_by_one_long_step(ddp):
    """Two modes that take as long; one of ten steps of one takes ten times as long, and halves its mean throughput."""
    long = run("single", 1.075, 10.75, num_devices=1, batch=128)
    grid = tables.runs_grid([ddp, long], ddp)
    assert long.throughput / ddp.throughput == pytest.approx(10 / 19)
    assert [row[-1] for row in grid.rows] == ["1.00", "1.00"] and "median" in grid.head[-1][0]


def test_one_round_whose_means_and_medians_disagree_says_so(ddp):
    found = [run("single", 0.615, 6.5, num_devices=1, batch=128), ddp]
    labels = [{"study": "compare", "suite": "compare-1", "program": r.config.mode, "round": 0} for r in found]
    for each, label in zip(found, labels, strict=True):
        each.data["config"] |= label
    (suite,) = suites_of([Record(each.data) for each in found])
    study = study_of(suite)
    said = " ".join(study.answer(study.result(suite)))
    assert "preview, no verdict" in said and "which of ddp and single is faster cannot be said" in said


def test_quiet_runs_have_no_warning(ddp):
    text = printed(ddp, [run("single", 0.615, num_devices=1, batch=128), run("independent", 0.9, num_devices=4)])
    assert "warning" not in text and "?" not in text and "1.75" in text


def test_a_run_without_others_is_named_too():
    assert "ddp had uneven steps" in printed(run("ddp", 1.0, 5.0, num_devices=2), [])


def test_a_grid_is_printed_with_its_brackets_and_every_cell():
    grid = tables.Grid([("what [unit]", False), ("n", True)], [["a [red]b[/]", "1"], ["c", "12"]], "caption")
    said = shown(tables.print_grid, grid)
    assert all(cell in said for cell in ("what [unit]", "a [red]b[/]", "12"))


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_table_wider_than_its_place_keeps_every_cell(is_terminal):
    """A narrow terminal, or a file: headings are broken, the words of a cell may be, a number with its interval not."""
    suite = records.suite("compare", records.compare_programs())
    (grid, *_) = study_of(suite).summary(compare_suite(suite))
    console = Console(width=40, force_terminal=is_terminal, color_system=None)
    with console.capture() as capture:
        tables.print_grid(console, grid)
    lines = capture.get().splitlines()
    for row in grid.rows:
        assert all(word in capture.get() for word in row[0].split()), capture.get()
        numbers = [cell for cell, (_, number) in zip(row, grid.head, strict=True) if number]
        assert any(all(cell in line for cell in numbers) for line in lines), capture.get()


def test_failed_and_evaluated_runs_have_a_row_that_says_so():
    failed = records.record("ddp", failed="killed")
    (evaluated,) = records.edited(
        [records.record("ddp", top1=[0.9], epochs=1, data="digits")],
        lambda data: data.update(status="evaluated", samples=[], summary={}),
    )
    rows = tables.runs_grid([records.record("dp"), failed, evaluated], records.record("dp")).rows
    assert {len(row) for row in rows} == {9}
    assert (
        "failed: killed" in rows[1]
        and rows[2][0] == "ddp, only validated: top-1 0.9000"
        and rows[1][-1] == rows[2][-1] == ""
    )


def test_memory_is_of_the_best_source_that_every_device_has():
    assert memory_cell([{"pss": 1.0, "rss": 2.0}, {"pss": 1.5, "rss": 2.5}]) == "pss 1.00 1.50"
    assert memory_cell([{"pss": None, "rss": 2.0}, {"pss": 1.5, "rss": 2.5}]) == "rss 2.00 2.50"
    assert "not known" in memory_cell([{"pss": None}])


def test_the_certificate_is_printed_with_what_differs_and_why():
    programs = records.compare_programs()
    programs["ddp"]["compression"] = "fp16"
    result = compare_suite(records.suite("compare", programs, rounds=2))
    said = shown(tables.print_certificate, result.certificate)
    assert "NOT A FAIR COMPARISON: gradient compression" in said and "differs: gradient compression" in said
    assert "fp16" in said and "inherent: device set" in said and "seed" in said.partition("equal:")[2]
    unequal, equal = tables.certificate_grids(result.certificate)
    assert unequal.rows[0][:2] == ["gradient compression", "differs"]  # the unfair comes first
    assert {row[0] for row in [*unequal.rows, *equal.rows]} == {fact.name for fact in result.certificate.facts}


def test_a_comparison_has_a_row_per_program_and_flags_what_was_unfair():
    programs = records.compare_programs()
    programs["ddp"]["compression"] = "fp16"
    result = compare_suite(records.suite("compare", programs, rounds=4))
    rows = {row[0]: row for row in tables.comparison_grid(result).rows}
    assert list(rows) == list(programs) and rows["single"][-2] == "base"
    assert "(unfair)" in rows["ddp"][-2] and "(unfair)" not in rows["dp"][-2]
    assert len(tables.pairs_grid(result).rows) == 10
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
    assert rows["ddp / dp"][-2:] == ["no difference", ""] and "Holm" in tables.pairs_grid(result).caption
    assert "all 10 pairs judged together (Holm): 7 of 8 verdicts hold, but for ddp / single" in result.together()
    two = {mode: programs[mode] for mode in ("single", "ddp")}
    alone = compare_suite(records.suite("compare", two, rounds=8))
    assert tables.pairs_grid(alone).rows[0][-2:] == ["faster", "yes"] and alone.together() == ""


def test_a_log_has_whole_sentences_and_no_blanks_at_the_ends(capsys):
    """What is printed where the output is no terminal: a sentence can be searched for, a table is not broken."""
    console = tables.terminal()
    tables.print_named(console, "note", "word " * 60 + "[bold]end[/]")  # which is no markup
    tables.print_grid(console, tables.Grid([("name", False), ("n", True)], [["a", "1"], ["longer", "22"]]))
    console.print("after")
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "note: " + "word " * 60 + "[bold]end[/]" and out.splitlines()[-1] == "after"
    assert all(line == line.rstrip() for line in out.splitlines()) and "\x1b" not in out
    assert [line.split() for line in out.splitlines()[4:6]] == [["a", "1"], ["longer", "22"]]


# --- memory by what it is for -------------------------------------------------------------------------------------

FIRST = {"weights": 0.1, "optimizer state": 0.1, "activations": 5.0, "context, libraries": 0.5}
OTHER = {"replicas": 0.1, "activations": 5.0, "context, libraries": 0.5}


def with_parts(record: Record, *parts: dict, note: str = "") -> Record:
    def change(data: dict) -> None:
        devices = [device for part in data["samples"] for device in part["devices"]]
        for device, gib in zip(devices, parts, strict=True):
            device["memory_parts"] = {"gib": gib, "source": "a history", "notes": [note] if note else []}

    return records.edited([record], change)[0]


def test_a_run_on_gpus_shows_what_fills_each_and_why_device_0_is_fuller():
    record = with_parts(run("dp", 0.1, device="cuda", num_devices=2), FIRST, OTHER, note="other processes: unknown")
    text = printed(record, [])
    assert "What memory is filled with at the peak of one more step" in text
    assert "weights 0.100 optimizer state 0.100 replicas 0.100 activations 5.000 5.000" in text
    assert "sum 5.700 5.600" in text and "note: other processes: unknown" in text
    assert (
        "dp: device 0 holds 0.100 GiB more than device 1: weights +0.100, optimizer state +0.100, replicas -0.100"
        in text
    )


def test_a_record_without_parts_shows_none():
    text = printed(run("dp", 0.1, device="cuda", num_devices=2), [])
    assert "What memory is filled with" not in text and "memory by what it is for" not in text


def test_the_page_has_the_same_table_of_single_runs_and_of_a_suite():
    from bench.report.page import page

    alone = with_parts(run("ddp", 0.1, device="cuda", num_devices=2), FIRST, FIRST)
    text = page([], [alone], [])
    assert "What memory is filled with at the peak" in text and "a history" in text
    some = records.suite_records("compare", records.compare_programs(), device="cuda")
    some = [with_parts(record, *2 * [FIRST]) if record.program == "ddp" else record for record in some]
    (suite,) = suites_of(some)
    assert "What memory is filled with at the peak" in page([suite], [], [])
    assert "What memory is filled with" not in page([], [run("ddp", 0.1)], [])


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
