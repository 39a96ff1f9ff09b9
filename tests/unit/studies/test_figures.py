"""The studies' pictures: each says of itself what it is, and what is drawn is what was computed.

How they look: three are, byte for byte, those in tests/goldens; ``python -m tests.goldens`` draws them again.
"""

import json
import re
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import matplotlib
import pytest

from bench.analysis import drawing, lanes, style
from bench.analysis import memory_figure as memory
from bench.analysis.comparison import compare_suite
from bench.analysis.suite import Suite
from bench.mistakes import MISTAKES
from bench.record.schema import check
from bench.studies.breakdown import result as breakdown
from bench.studies.compare import result as compare
from bench.studies.registry import STUDIES, study_of
from bench.studies.replay import result as replay
from bench.studies.scaling import result as scaling
from tests import goldens, records
from tests.shown import text_of

SUITES = dict.fromkeys(records.PROGRAMS) | {"strong": records.scaling_programs("strong", (2, 4, 16))}
LABS = {mistake.lab.shows: name for name, mistake in MISTAKES.items()}  # a mistake for each way in which one is drawn


@pytest.fixture(scope="module")
def suites():
    """One suite of each study, three rounds each, and one of each kind of mistake demo."""
    where = [{"file": "bench/training/epochs.py", "line": 7, "function": "f", "collective": True}, None]
    labs = {f"lab {shows}": records.lab_records(name, hung=where if name == "rank0-collective" else None)
            for shows, name in LABS.items()}  # fmt: skip
    found = {study: records.suite(study, programs, rounds=3) for study, programs in SUITES.items()}
    found["grid"] = records.suite("sweep", records.grid_programs(), rounds=3)
    return found | {name: records.one_suite(some) for name, some in labs.items()}


@pytest.fixture(scope="module")
def drawn(suites):
    """Study -> name -> picture, laid out: warnings are errors, so a layout that does not fit would show here."""
    found = {study: figures_of(suite) for study, suite in suites.items()}
    found["timeline"] = figures_of(records.one_suite(records.profiled_records()))
    found["on GPUs"] = figures_of(records.suite("compare", rounds=3, device="cuda"))
    for figure in (figure for figures in found.values() for figure in figures.values()):
        figure.draw_without_rendering()
    return found


def figures_of(suite: Suite) -> dict:
    study = study_of(suite)
    return study.figures(study.result(suite))


def test_every_study_is_here_and_each_picture_names_machine_versions_and_rounds(suites, drawn):
    assert {suite.study for suite in suites.values()} == set(STUDIES)
    for name, suite in suites.items():
        for record in suite.records:
            check(record.data, name)
        workers = max(record.config.num_devices for record in suite.records)
        assert drawn[name]
        for figure in drawn[name].values():
            said = text_of(figure)
            for words in ("Test(R) Processor 3.0", "torch 2.9.0", f"{workers} CPU processes", "n = 3"):
                assert words in said, (name, words)


def test_nothing_written_lies_outside_of_the_picture(drawn):
    for study, figures in drawn.items():
        for name, figure in figures.items():
            width, height = figure.canvas.get_width_height()
            boxes = {str(axes): axes.get_tightbbox() for axes in figure.axes}
            texts = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
            boxes |= {text.get_text(): text.get_window_extent() for text in texts}
            for what, box in boxes.items():
                inside = box.x0 > -1 and box.y0 > -1 and box.x1 < width + 1 and box.y1 < height + 1
                assert inside, f"{study}/{name}: {what!r} at {box}"


def test_an_unfair_comparison_is_flagged_in_every_picture_and_a_fair_one_in_none(drawn):
    programs = records.compare_programs(4)
    programs["ddp"]["compression"] = "fp16"
    suite = records.suite("compare", programs, rounds=2, device="cuda")
    figures = figures_of(suite)
    assert list(figures) == list(compare.FIGURES["compare"])
    for figure in figures.values():
        said = text_of(figure)
        assert "NOT A FAIR COMPARISON: gradient compression" in said
        assert "4× Test GPU 80GB" in said and "CPU processes" not in said
    flagged = [pair for pair in compare_suite(suite).pairs if "ddp" in (pair.a, pair.b)]
    assert text_of(figures["ratios"]).count("[not a fair comparison]") == len(flagged) > 0
    assert style.flag(None) == ""
    assert not any("FAIR" in text_of(figure) for name in ("compare", "breakdown", "timeline")
                   for figure in drawn[name].values())  # fmt: skip

    synchronises = records.in_samples(lambda part: part["facts"].update(item_sync=True))
    suite = records.one_suite(records.edited(records.profiled_records(), synchronises, "ddp"))
    assert "NOT A FAIR COMPARISON" in text_of(figures_of(suite)["timeline"])


@pytest.mark.parametrize("study", ["compare", "weak", "breakdown", "sweep", "replay", "accuracy"])
def test_one_round_says_that_there_is_no_interval(study):
    for figure in figures_of(records.suite(study, SUITES[study], rounds=1)).values():
        assert "no interval" in text_of(figure) and "interval of" not in text_of(figure)


def test_the_interval_that_is_drawn_is_the_computed_one_and_a_wild_one_is_cut(suites, drawn):
    found = [pair.comparison for pair in compare_suite(suites["compare"]).pairs]
    marks = {round(float(x), 9) for line in drawn["compare"]["ratios"].axes[0].get_lines() for x in line.get_xdata()}
    assert {round(end, 9) for each in found for end in (each.low, each.high)} <= marks
    programs = {"dp": {"mode": "dp", "throughput": [90.0, 91.0, 90.5]},
                "ddp": {"mode": "ddp", "throughput": [30.0, 80.0, 55.0]}}  # fmt: skip
    result = compare_suite(records.suite("compare", programs, rounds=3))
    axes = compare.draw_ratios(result).axes[0]
    low, high = axes.get_xlim()
    assert result.pairs[0].comparison.high > 1.6 and low < 0.4 and 1.02 < high < 1.5
    assert {line.get_marker() for line in axes.get_lines()} >= {">"}  # the interval continues there
    exposed = {"ddp": {"mode": "ddp", "throughput": [90.0, 60.0, 75.0]}}
    exposed["ddp no_sync"] = {"mode": "ddp", "throughput": [100.0, 110.0, 60.0], "sync": False}
    low, high = figures_of(records.suite("breakdown", exposed, rounds=3))["step"].axes[0].get_xlim()
    assert -300 < low < 0 and high < 1300  # the longest step takes 1067 ms


def test_a_picture_is_the_same_bytes_whatever_a_users_own_settings_of_matplotlib_are(suites):
    before = drawing.svg_of(figures_of(suites["replay"])["replay"])
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": "mine", "lines.linewidth": 9, "figure.dpi": 50}):
        assert drawing.svg_of(figures_of(suites["replay"])["replay"]) == before


def test_speedup_and_efficiency_of_a_known_case():
    programs = {"single 1": {"mode": "single", "num_devices": 1, "throughput": [100.0, 110.0, 90.0]},
                "ddp 4": {"mode": "ddp", "num_devices": 4, "throughput": [300.0, 330.0, 270.0]}}  # fmt: skip
    result = STUDIES["weak"].result(records.suite("weak", programs, rounds=3))
    single, ddp = (result.suite.programs[label] for label in ("single 1", "ddp 4"))
    assert [round(x, 6) for x in scaling.speedup(result, ddp)] == [3.0, 3.0, 3.0]
    assert [round(x, 6) for x in scaling.efficiency(result, ddp)] == [75.0, 75.0, 75.0]
    assert scaling.speedup(result, single) == (1.0, None, None)


def test_phases_add_up_to_the_step(suites):
    for program in suites["breakdown"].programs.values():
        total = sum(breakdown.phases_ms(program.records).values())
        steps = [breakdown.step_ms(record) for record in program.records]
        assert total == pytest.approx(sum(steps) / len(steps), rel=1e-9)
    (record,) = records.edited([records.record()], records.in_samples(lambda part: part.pop("phase_time_s")))
    phases = breakdown.phases_ms([record])
    assert phases["forward"] == 0 and phases["other"] == pytest.approx(0.98 * breakdown.step_ms(record))


def test_exposed_communication_is_the_difference_by_round():
    """64 images per step: 1, 2, 1.5 s with and 0.5, 1.6, 1.05 s without the exchange."""
    exposed = {"ddp": {"mode": "ddp", "throughput": [64.0, 32.0, 64 / 1.5]},
               "ddp no_sync": {"mode": "ddp", "throughput": [128.0, 40.0, 64 / 1.05], "sync": False}}  # fmt: skip
    programs = records.suite("breakdown", exposed, rounds=3).programs
    each, mean, low, high = breakdown.exposed_comm(programs["ddp"], programs["ddp no_sync"])
    assert each == pytest.approx([500.0, 400.0, 450.0]) and mean == pytest.approx(450.0)
    assert (low + high) / 2 == pytest.approx(450.0) and high - low == pytest.approx(2 * 4.302653 * 50.0 / 3**0.5)


def test_on_a_gpu_the_hosts_wait_is_cut_and_the_bar_ends_with_the_step():
    """The host waits 60 % of a step for data while the device computes: phases and wait together are 156 %."""
    waits = records.in_samples(lambda part: part.update(data_wait_s=[0.6 * t for t in part["step_time_s"]]))
    suite = records.suite("breakdown", rounds=2, device="cuda", change=waits)
    axes = figures_of(suite)["step"].axes[0]
    ends = {}
    for bar in axes.patches:
        y = round(bar.get_y() + bar.get_height() / 2)
        ends[y] = max(ends.get(y, 0.0), bar.get_x() + bar.get_width())
    assert [label.get_text() for label in axes.get_yticklabels()] == list(suite.programs)
    for y, program in enumerate(suite.programs.values()):
        mean_ms = sum(map(breakdown.step_ms, program.records)) / 2
        assert ends[y] == pytest.approx(mean_ms) and axes.texts[y].get_text() == style.number(mean_ms)
    ddp = suite.programs["ddp"]
    wait = breakdown.phases_ms(ddp.records)["data wait"]
    assert wait == pytest.approx(0.04 * breakdown.step_ms(ddp.first), rel=0.05)


def test_the_timeline_gives_dps_parts_and_the_share_of_communication_under_computation(drawn):
    latest = breakdown.latest(records.one_suite(records.profiled_records()))
    assert breakdown.parts_ms(latest["dp"]) == pytest.approx({"scatter": 4.0, "replicate": 12.5, "gather": 2.0})
    spans = breakdown.timelines(latest["ddp"])[0]["spans"]
    assert breakdown.hidden_share(spans) == pytest.approx((5 + 50 + 20) / (5 + 50 + 40))
    said = text_of(drawn["timeline"]["timeline"])
    assert all(words in said for words in ("scatter 4 ms", "replicate 12.5 ms", "gather 2 ms", "79 %"))
    profiled_only = records.one_suite(records.profiled_records()[-2:])
    figure = breakdown.draw_timeline(SimpleNamespace(suite=profiled_only, certificate=None))
    assert {"dp", "ddp"} <= {axes.get_title(loc="left").partition(":")[0] for axes in figure.axes}


def test_each_row_of_a_step_has_a_name_of_its_own():
    spans = [{"lane": "compute", "name": thread, "start_s": 0.0, "end_s": 1.0} for thread in ("first", "second")]
    panel = lanes.Panel("dp", {"rank 0": lanes.lanes_of(spans)}, 1.0)
    (axes,) = lanes.draw(None, "A step", [panel], "seconds").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0  compute", "compute 2"]


def test_each_device_has_its_own_bar_and_parts_end_at_their_values():
    suite = records.suite("compare", records.compare_programs(2), rounds=2, device="cuda")
    axes = memory.draw(compare_suite(suite)).axes[0]
    ends = {}
    for bar in axes.patches:
        ends.setdefault(round(bar.get_y() + bar.get_height() / 2, 6), []).append(bar.get_x() + bar.get_width())
    assert {round(y, 6) for y in axes.get_yticks()} == ends.keys()
    programs = suite.programs.values()
    peaks = [device for program in programs for device in memory.devices_of(program.records).values()]
    for drawn_ends, device in zip((ends[y] for y in sorted(ends)), peaks, strict=True):
        assert drawn_ends == pytest.approx([device[source] for source in records.GPU_MIB])


def test_settings_have_a_row_each_and_cells_a_point_with_its_interval(suites, drawn):
    pairs = STUDIES["sweep"].result(suites["sweep"]).pairs
    rows = [text.get_text() for text in drawn["sweep"]["sweep"].axes[0].texts]
    assert len(rows) == len(pairs) == len(records.sweep_programs()) - 1
    assert figures_of(records.suite("sweep", {"ddp": {"mode": "ddp"}}, rounds=2))  # without any setting
    (axes,) = drawn["grid"]["sweep"].axes
    drawn_points = {(round(x), round(y, 3)) for line in axes.containers for x, y in line.lines[0].get_xydata()}
    found = suites["grid"].programs.values()
    assert drawn_points == {(each.config.per_device_batch, round(each.mean_throughput[0], 3)) for each in found}
    assert axes.get_xlabel() == "BATCH"
    labels = {text.get_text() for text in axes.get_legend().get_texts()}
    assert labels == {f"{mode}, PRECISION={p}" for mode in ("ddp", "horovod") for p in ("bf16", "fp32")}
    looks = {(line.lines[0].get_color(), line.lines[0].get_marker()) for line in axes.containers}
    assert len(looks) == len(labels)


def test_the_best_command_is_given_if_every_other_cell_is_slower_and_else_the_equal_ones(suites):
    study, programs = STUDIES["sweep"], records.grid_programs()
    result = study.result(suites["grid"])
    first, *_ = study.summary(result)[0].rows
    assert first[0] == result.base == "ddp batch=128 precision=bf16"
    other = "horovod batch=128 precision=bf16"
    near = programs | {other: programs[other] | {"throughput": programs[result.base]["throughput"]}}
    cases = ((8, programs, True, "BATCH=128"), (8, near, False, other), (2, programs, False, "preview"))
    for rounds, each, best, named in cases:
        found = study.answer(study.result(records.suite("sweep", each, rounds=rounds)))
        assert any("make bench" in line for line in found) == best and named in found[-1]
    loaded = records.loaded(records.suite_records("sweep", programs, rounds=8), 0.41)
    assert "disturbed" in study.answer(study.result(records.one_suite(loaded)))[-1]


def test_a_replay_shows_how_far_the_verdict_moved_whatever_the_order(drawn):
    said = text_of(drawn["replay"]["replay"])
    assert re.search(r"×1.0[67] \(fair: ddp\).*×0.92 \(unfair: ddp\)", said) and "NOT A FAIR COMPARISON" in said
    programs = dict(reversed(records.replay_programs().items()))
    rows = replay.pairs_of(STUDIES["replay"].result(records.suite("replay", programs, rounds=3)))
    assert [(pair.a, pair.b) for pair in rows] == [("base: dp", "fair: ddp"), ("base: dp", "unfair: ddp")]
    control = {f"{part}: ddp": {"mode": "ddp", "variant": part} for part in ("base", "fair", "unfair")}
    suite = records.suite("replay", control, rounds=3)
    assert replay.changed(suite) == [] and "control" in text_of(figures_of(suite)["replay"])


COMMITTED = {path.name: path.read_text(encoding="utf-8") for path in sorted(goldens.FOLDER.glob("*.svg"))}


def test_every_picture_is_its_golden_which_names_no_day_and_no_program():
    for name, svg in COMMITTED.items():
        ElementTree.fromstring(svg)
        assert "<dc:date>" not in svg and "Matplotlib" not in svg, name
    here, there = goldens.versions(), json.loads(goldens.VERSIONS.read_text())
    if here != there:
        pytest.skip(f"the goldens were drawn with {there}; here is {here}")
    drawn = goldens.pictures()
    assert set(COMMITTED) == set(drawn)
    assert [name for name, svg in drawn.items() if svg != COMMITTED[name]] == []
