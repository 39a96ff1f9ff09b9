"""The studies' pictures: each says of itself what it is, and what is drawn is what was computed.

How each kind looks is proven by the goldens (test_goldens.py).
"""

import re
from collections import Counter
from types import SimpleNamespace

import matplotlib
import pytest

from bench.analysis import drawing, style
from bench.analysis import memory_figure as memory
from bench.analysis.comparison import compare_suite
from bench.analysis.suite import Suite, suites_of
from bench.config.modes import MODES
from bench.record.schema import check
from bench.studies.breakdown import result as breakdown
from bench.studies.compare import result as compare
from bench.studies.knobs import result as knobs
from bench.studies.registry import STUDIES, study_of
from bench.studies.replay import result as replay
from bench.studies.scaling import result as scaling
from tests import records
from tests.shown import text_of

SUITES = {
    "compare": records.compare_programs(),
    "weak": records.scaling_programs("weak"),
    "strong": records.scaling_programs("strong"),
    "breakdown": records.breakdown_programs(),
    "knobs": records.knob_programs(),
    "replay": records.replay_programs(),
    "accuracy": records.accuracy_programs(),
    "unsynced": records.unsynced_programs(),
}
EXPOSED = {
    "ddp": {"mode": "ddp", "throughput": [64.0, 32.0, 64 / 1.5]},  # 64 images per step: 1, 2, 1.5 s
    "ddp no_sync": {"mode": "ddp", "throughput": [128.0, 40.0, 64 / 1.05], "sync": False},  # 0.5, 1.6, 1.05 s
}


@pytest.fixture(scope="module")
def suites():
    """One suite of each study, three rounds each."""
    return {study: records.suite(study, programs, rounds=3) for study, programs in SUITES.items()}


@pytest.fixture(scope="module")
def drawn(suites):
    """Study -> name -> picture, laid out: warnings are errors, so a layout that does not fit would show here."""
    found = {study: figures_of(suite) for study, suite in suites.items()}
    for figure in (figure for figures in found.values() for figure in figures.values()):
        figure.draw_without_rendering()
    return found


def figures_of(suite: Suite) -> dict:
    """The pictures of a suite, by name."""
    study = study_of(suite)
    return study.figures(study.result(suite))


def one_suite(found: list) -> Suite:
    """The one suite of these records."""
    (suite,) = suites_of(found)
    return suite


def drawn_x(axes, ringed: bool = False) -> set[float]:
    """Where the marks and bars of intervals stand on the x axis; or the rings alone."""
    lines = [line for line in axes.get_lines() if not ringed or line.get_fillstyle() == "none"]
    return {round(float(x), 9) for line in lines for x in line.get_xdata()}


def rounded(values) -> set[float]:
    """To compare with ``drawn_x``."""
    return {round(float(x), 9) for x in values}


def certificate(fair: bool) -> SimpleNamespace:
    """A certificate that says so."""
    fact = SimpleNamespace(name="loader workers in total")
    return SimpleNamespace(fair=fair, differences=[] if fair else [fact])


@pytest.mark.parametrize("study", SUITES)
def test_the_made_up_records_are_valid(suites, study):
    for record in suites[study].records:
        check(record.data, study)


def test_every_study_with_pictures_is_here():
    assert {*SUITES, "lab"} == set(STUDIES)  # test_lab.py has the labs


@pytest.mark.parametrize("study", SUITES)
def test_each_picture_says_what_it_is(suites, drawn, study):
    workers = max(record.config.num_devices for record in suites[study].records)
    assert drawn[study]
    for figure in drawn[study].values():
        said = text_of(figure)
        assert "Test(R) Processor 3.0, 2 cores" in said and "torch 2.9.0" in said
        assert f"{workers} CPU workers stand for {workers} devices" in said and "n = 3 interleaved rounds" in said


@pytest.mark.parametrize("study", SUITES)
def test_nothing_written_lies_outside_of_the_picture(drawn, study):
    for name, figure in drawn[study].items():
        width, height = figure.canvas.get_width_height()
        boxes = {str(axes): axes.get_tightbbox() for axes in figure.axes}
        texts = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
        boxes |= {text.get_text(): text.get_window_extent() for text in texts}
        for what, box in boxes.items():
            inside = box.x0 > -1 and box.y0 > -1 and box.x1 < width + 1 and box.y1 < height + 1
            assert inside, f"{study}/{name}: {what!r} at {box}"


def test_gpus_are_named_and_no_worker_stands_for_them():
    suite = records.suite("compare", records.compare_programs(4), rounds=2, device="cuda")
    for figure in figures_of(suite).values():
        said = text_of(figure)
        assert "GPU: 4× Test GPU 80GB" in said and "stand for" not in said


def test_an_unfair_comparison_is_flagged_in_every_picture():
    programs = records.compare_programs()
    programs["ddp"]["compression"] = "fp16"
    suite = records.suite("compare", programs, rounds=2)
    figures = figures_of(suite)
    assert list(figures) == list(compare.FIGURES["compare"])
    for figure in figures.values():
        assert "NOT A FAIR COMPARISON: gradient compression" in text_of(figure)
    flagged = [pair for pair in compare_suite(suite).pairs if "ddp" in (pair.a, pair.b)]
    assert text_of(figures["ratios"]).count("[not a fair comparison]") == len(flagged) > 0


def test_a_fair_one_is_not(drawn):
    assert style.flag(certificate(fair=True)) == "" and style.flag(None) == ""
    assert style.flag(certificate(fair=False)) == "NOT A FAIR COMPARISON: loader workers in total"
    for figure in drawn["compare"].values():
        assert "FAIR" not in text_of(figure)


@pytest.mark.parametrize("study", ["compare", "weak", "breakdown", "knobs", "replay", "accuracy"])
def test_one_round_says_that_there_is_no_interval(study):
    for figure in figures_of(records.suite(study, SUITES[study], rounds=1)).values():
        assert "no interval" in text_of(figure) and "interval of" not in text_of(figure)


def test_every_round_is_a_dot_and_an_outlier_has_a_ring():
    programs = records.compare_programs()
    programs["ddp"]["throughput"] = [91.0, 91.2, 90.8, 140.0, 91.1]
    result = compare_suite(records.suite("compare", programs, rounds=5))
    assert result.outliers["ddp"] == [3]
    axes, suite = compare.draw_ratios(result).axes[0], result.suite
    for pair in result.pairs:
        a, b = (suite.programs[label].throughputs for label in (pair.a, pair.b))
        ratios = [y / x for x, y in zip(a, b, strict=True)]
        assert rounded(ratios) <= drawn_x(axes)
        far = {*result.outliers.get(pair.a, []), *result.outliers.get(pair.b, [])}
        assert rounded(ratios) & drawn_x(axes, ringed=True) == rounded(ratios[i] for i in far)


def test_a_wild_interval_does_not_press_the_rounds_together():
    programs = {
        "dp": {"mode": "dp", "throughput": [90.0, 91.0, 90.5]},
        "ddp": {"mode": "ddp", "throughput": [30.0, 80.0, 55.0]},
    }
    result = compare_suite(records.suite("compare", programs, rounds=3))
    assert result.pairs[0].comparison.high > 1.6
    axes = compare.draw_ratios(result).axes[0]
    low, high = axes.get_xlim()
    assert low < 0.4 and 1.02 < high < 1.5
    assert {line.get_marker() for line in axes.get_lines()} >= {">"}  # the interval goes on there
    exposed = {"ddp": {"mode": "ddp", "throughput": [90.0, 60.0, 75.0]}}
    exposed["ddp no_sync"] = {"mode": "ddp", "throughput": [100.0, 110.0, 60.0], "sync": False}
    low, high = figures_of(records.suite("breakdown", exposed, rounds=3))["step"].axes[0].get_xlim()
    assert -300 < low < 0 and high < 1300  # the longest step takes 1067 ms


def test_the_interval_that_is_drawn_is_the_one_that_was_computed(suites, drawn):
    pairs = compare_suite(suites["compare"]).pairs
    ends = {end for pair in pairs for end in (pair.comparison.low, pair.comparison.high)}
    assert rounded(ends) <= drawn_x(drawn["compare"]["ratios"].axes[0])


def test_two_writings_are_the_same_bytes(suites, tmp_path):
    result = compare_suite(suites["replay"])
    draw = study_of(suites["replay"]).figures
    paths = [drawing.save(draw(result)["replay"], tmp_path / folder, "replay") for folder in ("a", "b")]
    assert [path.name for path in paths] == ["replay.svg"] * 2
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_users_own_settings_change_nothing(suites):
    plain = drawing.svg_of(figures_of(suites["replay"])["replay"])
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": "mine", "lines.linewidth": 9, "figure.dpi": 50}):
        assert drawing.svg_of(figures_of(suites["replay"])["replay"]) == plain


def test_modes_differ_in_grey_too():
    looks = [mode.look for mode in MODES.values()]
    assert len({look.marker for look in looks}) == len({look.line for look in looks}) == len(looks)
    phases = [(look.colour, look.hatch) for look in breakdown.PHASES.values()]
    assert len(set(phases)) == len(phases)


# --- scaling --------------------------------------------------------------------------------------------------------


def test_speedup_and_efficiency_of_a_known_case():
    programs = {
        "single 1": {"mode": "single", "num_devices": 1, "throughput": [100.0, 110.0, 90.0]},
        "ddp 4": {"mode": "ddp", "num_devices": 4, "throughput": [300.0, 330.0, 270.0]},
        "independent 4": {"mode": "independent", "num_devices": 4, "throughput": [320.0, 352.0, 288.0]},
    }
    result = STUDIES["weak"].result(records.suite("weak", programs, rounds=3))
    single, ddp = (result.suite.programs[label] for label in ("single 1", "ddp 4"))
    assert [round(x, 6) for x in scaling.speedup(result, ddp)] == [3.0, 3.0, 3.0]
    assert [round(x, 6) for x in scaling.efficiency(result, ddp)] == [75.0, 75.0, 75.0]
    assert scaling.speedup(result, single) == (1.0, None, None)
    assert "bound" in text_of(STUDIES["weak"].figures(result)["weak-scaling"])


# --- the step -------------------------------------------------------------------------------------------------------


def test_phases_add_up_to_the_step(suites):
    for program in suites["breakdown"].programs.values():
        total = sum(breakdown.phases_ms(program.records).values())
        steps = [breakdown.step_ms(record) for record in program.records]
        assert total == pytest.approx(sum(steps) / len(steps), rel=1e-9)


def test_exposed_communication_is_the_difference_by_round():
    programs = records.suite("breakdown", EXPOSED, rounds=3).programs
    each, mean, low, high = breakdown.exposed_comm(programs["ddp"], programs["ddp no_sync"])
    assert each == pytest.approx([500.0, 400.0, 450.0]) and mean == pytest.approx(450.0)
    assert (low + high) / 2 == pytest.approx(450.0) and high - low == pytest.approx(2 * 4.302653 * 50.0 / 3**0.5)


def test_on_a_gpu_the_hosts_wait_is_cut_and_the_bar_ends_with_the_step():
    """The host waits 60 % of a step for data while the device computes: phases and wait together are 156 %."""

    def waits(part: dict) -> None:
        part["data_wait_s"] = [0.6 * t for t in part["step_time_s"]]

    found = records.suite_records("breakdown", records.breakdown_programs(), rounds=2, device="cuda")
    suite = one_suite(records.edited(found, records.in_samples(waits)))
    figure = figures_of(suite)["step"]
    axes = figure.axes[0]
    ends = {}
    for bar in axes.patches:
        y = round(bar.get_y() + bar.get_height() / 2)
        ends[y] = max(ends.get(y, 0.0), bar.get_x() + bar.get_width())
    labels = [label.get_text() for label in axes.get_yticklabels()]
    said = [text.get_text() for text in axes.texts]
    assert labels == list(suite.programs)
    for y, label in enumerate(labels):
        mean_ms = sum(map(breakdown.step_ms, suite.programs[label].records)) / 2
        assert ends[y] == pytest.approx(mean_ms) and said[y] == style.number(mean_ms)
    ddp = suite.programs["ddp"]
    wait = breakdown.phases_ms(ddp.records)["data wait"]
    assert wait == pytest.approx(0.04 * breakdown.step_ms(ddp.first), rel=0.05)
    assert "wait for data is cut" in text_of(figure)


def test_dps_parts_are_given_one_by_one():
    suite = one_suite(records.profiled_records())
    dp = breakdown.latest(suite)["dp"]
    assert breakdown.parts_ms(dp) == pytest.approx({"scatter": 4.0, "replicate": 12.5, "gather": 2.0})
    said = text_of(figures_of(suite)["timeline"])
    assert "scatter 4 ms, replicate 12.5 ms, gather 2 ms" in said and "FAIR" not in said


def test_the_share_of_communication_that_lies_under_computation_is_said():
    spans = breakdown.timelines(breakdown.latest(one_suite(records.profiled_records()))["ddp"])[0]["spans"]
    assert breakdown.hidden_share(spans) == pytest.approx((5 + 50 + 20) / (5 + 50 + 40))
    assert "79 % (rank 0)" in text_of(figures_of(one_suite(records.profiled_records()))["timeline"])


def test_the_timeline_has_the_flag_of_the_comparison():
    def synchronises(data: dict) -> None:
        if data["config"]["mode"] == "ddp":
            records.in_samples(lambda part: part["facts"].update(item_sync=True))(data)

    suite = one_suite(records.edited(records.profiled_records(), synchronises))
    assert "NOT A FAIR COMPARISON: extra work per step" in text_of(figures_of(suite)["timeline"])


def test_a_suite_of_profiled_runs_alone_has_a_timeline():
    suite = one_suite(records.profiled_records()[-2:])
    assert not suite.programs
    figure = breakdown.draw_timeline(SimpleNamespace(suite=suite, certificate=None))
    assert {"dp", "ddp"} <= {axes.get_title(loc="left").partition(":")[0] for axes in figure.axes}


def test_records_without_phase_times_are_all_other():
    (record,) = records.edited([records.record()], records.in_samples(lambda part: part.pop("phase_time_s")))
    phases = breakdown.phases_ms([record])
    assert phases["forward"] == 0 and phases["other"] == pytest.approx(0.98 * breakdown.step_ms(record))


def test_the_picture_of_the_step_is_not_flagged_for_leaving_the_exchange_out(drawn):
    assert "FAIR" not in text_of(drawn["breakdown"]["step"])


# --- memory ---------------------------------------------------------------------------------------------------------


def test_each_device_has_its_own_bar_and_parts_end_at_their_figures():
    suite = records.suite("compare", records.compare_programs(2), rounds=2, device="cuda")
    axes = memory.draw(compare_suite(suite)).axes[0]
    ends = {}
    for bar in axes.patches:
        ends.setdefault(round(bar.get_y() + bar.get_height() / 2, 6), []).append(bar.get_x() + bar.get_width())
    names = dict(zip((round(y, 6) for y in axes.get_yticks()), axes.get_yticklabels(), strict=True))
    assert names.keys() == ends.keys()
    peaks = [
        device for program in suite.programs.values() for device in memory.devices_of(program.records).values()
    ]  # in the order in which they are drawn
    assert len(peaks) == len(ends)
    for drawn_ends, device in zip((ends[y] for y in sorted(ends)), peaks, strict=True):
        assert drawn_ends == pytest.approx([device[source] for source in records.GPU_MIB])


def test_a_figure_that_nobody_knows_is_named():
    partly = {"torch_allocated": 5.0, "torch_reserved": 6.0, "nvml_process": None, "nvml_device": 7.0}
    suite = records.suite("compare", records.compare_programs(), rounds=2, device="cuda", memory=partly)
    said = text_of(memory.draw(compare_suite(suite)))
    assert "Not known here: nvml_process" in said and "rest of the device" in said
    assert "Source: nvml_device" in text_of(memory.draw_over_time(compare_suite(suite)))


def test_the_peak_of_a_device_is_the_highest_of_all_rounds():
    low, high = (records.record(memory={"pss": gib, "rss_hwm": 1.0}) for gib in (0.5, 0.75))
    assert {d: peaks["pss"] for d, peaks in memory.devices_of([high, low]).items()} == {
        "process 0": 0.75,
        "process 1": 0.75,
    }


def test_ranks_that_share_a_gpu_are_told_apart():
    def share(data: dict) -> None:
        for peaks in data["summary"]["peak_memory_gib"]:
            peaks["device"] = "cuda:0"

    found = records.edited([records.record(device="cuda")], share)
    assert list(memory.devices_of(found)) == ["cuda:0 process 0", "cuda:0 process 1"]


def test_no_memory_at_all_is_still_a_picture():
    suite = records.suite("compare", records.compare_programs(), rounds=2, memory={"pss": None, "rss_hwm": None})
    result = compare_suite(suite)
    assert "not known" in text_of(memory.draw(result))
    assert "none recorded" in text_of(memory.draw_over_time(result))


# --- knobs ----------------------------------------------------------------------------------------------------------


def cells_of(figure) -> Counter:
    """The ratios that are written in the cells of a sweep's picture."""
    return Counter(
        ratio for axes in figure.axes for text in axes.texts for ratio in re.findall(r"×\S+", text.get_text())
    )


def settings_of(suite: Suite) -> Counter:
    """The ratio of each setting to the settings of the run, as it should be written."""
    return Counter(f"×{pair.comparison.ratio:.2f}" for pair in STUDIES["knobs"].result(suite).pairs)


def test_a_cell_for_each_setting(suites, drawn):
    assert cells_of(drawn["knobs"]["knobs"]) == settings_of(suites["knobs"])
    said = text_of(drawn["knobs"]["knobs"])
    assert "powersgd" in said and "bucket_cap_mb down, gradient_as_bucket_view across" in said


def test_the_base_and_what_chance_does_are_said(suites, drawn):
    base, _ = knobs.settings_of(suites["knobs"])
    said = text_of(drawn["knobs"]["knobs"])
    assert knobs.base_words(base) in said and all(line in said for line in knobs.chance(suites["knobs"]))
    assert knobs.chance(suites["knobs"]) and "defaults" in knobs.base_words(base)
    tuned = {label: options | {"tuned": True, "batch": 32} for label, options in records.knob_programs().items()}
    (base, _), suite = (
        knobs.settings_of(records.suite("knobs", tuned, rounds=2)),
        records.suite("knobs", tuned, rounds=1),
    )
    assert "gradient_as_bucket_view=1, static_graph=1" in knobs.base_words(base) and "TUNED" in knobs.base_words(base)
    assert knobs.chance(suite) == []  # one round: no interval


@pytest.mark.parametrize("hole", ["ddp bucket_cap_mb=5 gradient_as_bucket_view=1", None])
def test_a_grid_with_a_hole_and_a_pair_outside_of_it_lose_no_setting(hole):
    programs = records.knob_programs() | {
        "ddp overlap=0 static_graph=1": {"mode": "ddp", "throughput": 91.0, "overlap": False, "static_graph": True}
    }
    suite = records.suite("knobs", {label: each for label, each in programs.items() if label != hole}, rounds=2)
    figure = figures_of(suite)["knobs"]
    assert cells_of(figure) == settings_of(suite) and "overlap + static_graph" in text_of(figure).replace(
        "static_graph + overlap", "overlap + static_graph"
    )


def test_a_sweep_without_settings_says_so():
    suite = records.suite("knobs", {"ddp": {"mode": "ddp"}}, rounds=2)
    assert "no program of this suite sets a knob" in text_of(figures_of(suite)["knobs"])


def test_settings_without_a_grid_are_ratios_with_their_rounds():
    suite = records.suite("knobs", records.format_programs(), rounds=4)
    result = STUDIES["knobs"].result(suite)
    assert result.certificate.fair, result.certificate.sentence()
    figure = STUDIES["knobs"].figures(result)["knobs"]
    against_base = [pair.comparison for pair in result.pairs if pair.a == "single"]
    ends = {end for found in against_base for end in (found.low, found.high)}
    assert len(against_base) == 4 and rounded(ends) <= drawn_x(figure.axes[0])
    said = text_of(figure)
    assert "fp32" in said and "no timed step has any of it" in said
    assert "slower than single" in said


# --- replay ---------------------------------------------------------------------------------------------------------


def test_a_replay_says_how_far_the_verdict_moved(suites, drawn):
    said = text_of(drawn["replay"]["replay"])
    assert re.search(r"×1.0[67] \(fair: ddp\) becomes ×0.92 \(unfair: ddp\)", said)
    assert "NOT A FAIR COMPARISON: extra work per step" in said


def test_the_replays_programs_are_known_by_their_variants_in_any_order():
    programs = dict(reversed(records.replay_programs().items()))
    rows = replay.pairs_of(STUDIES["replay"].result(records.suite("replay", programs, rounds=3)))
    assert [(pair.a, pair.b) for pair in rows] == [("base: dp", "fair: ddp"), ("base: dp", "unfair: ddp")]


def test_a_replay_of_nothing_is_the_control():
    programs = {f"{part}: ddp": {"mode": "ddp", "throughput": 90.0, "variant": part}
                for part in ("base", "fair", "unfair")}  # fmt: skip
    suite = records.suite("replay", programs, rounds=3)
    assert replay.changed(suite) == []
    assert "control" in text_of(figures_of(suite)["replay"])


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_picture_that_cannot_be_written_leaves_the_old_one(suites, tmp_path, monkeypatch):
    figure = figures_of(suites["replay"])["replay"]
    path = drawing.save(figure, tmp_path / "new", "one")
    before = path.read_bytes()

    def full(self, content):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(type(tmp_path), "write_bytes", full)
        with pytest.raises(OSError, match="No space"):
            drawing.save(figure, tmp_path / "new", "one")
    assert path.read_bytes() == before and list((tmp_path / "new").iterdir()) == [path]
