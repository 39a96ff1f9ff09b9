"""bench/report/figures: every picture is drawn, says of itself what it is, and comes out the same each time."""

import re
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import matplotlib
import pytest

from bench.analysis import comparison, style
from bench.analysis import drawing as figures
from bench.analysis import memory_figure as memory
from bench.record import write as real
from bench.studies.breakdown import step_figure as step
from bench.studies.breakdown import timeline_figure as timeline
from bench.studies.compare import figures as compare
from bench.studies.knobs import figures as knobs
from bench.studies.replay import figures as replay
from bench.studies.scaling import figures as scaling
from tests import records

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
EXPECTED = {
    "compare": ["ratios", "throughput", "memory", "memory-over-time"],
    "weak": ["weak-scaling"],
    "strong": ["strong-scaling"],
    "breakdown": ["step", "memory"],
    "knobs": ["knobs"],
    "replay": ["replay"],
    "accuracy": ["accuracy"],
    "unsynced": ["replica-distance", "accuracy-by-rank", "seed-pairs"],
}


@pytest.fixture(scope="module")
def suites():
    """One suite of each kind, three rounds each."""
    return {kind: records.suite(kind, programs, rounds=3) for kind, programs in SUITES.items()}


def text_of(figure) -> str:
    """All that a picture says, in one line; line breaks of wrapped sentences are spaces."""
    found = [text.get_text() for text in figure.findobj(matplotlib.text.Text)]
    return " ".join(" ".join(found).split())


def is_true(certificate_is_fair: bool):
    """A certificate that says so."""
    fact = SimpleNamespace(name="loader workers in total")
    return SimpleNamespace(fair=certificate_is_fair, differences=[] if certificate_is_fair else [fact])


@pytest.mark.parametrize("kind", SUITES)
def test_the_made_up_records_are_valid(suites, kind):
    for role in suites[kind].roles.values():
        for record in role:
            real.check(record, kind)


@pytest.mark.parametrize("kind", SUITES)
def test_each_kind_has_its_pictures_and_each_says_what_it_is(suites, kind):
    drawn = figures.figures_of(suites[kind])
    assert list(drawn) == EXPECTED[kind]
    workers = max(record["config"]["num_devices"] for role in suites[kind].roles.values() for record in role)
    for figure in drawn.values():
        said = text_of(figure)
        assert "Test(R) Processor 3.0, 2 cores" in said and "torch 2.9.0" in said
        assert f"{workers} CPU workers stand for {workers} devices" in said and "n = 3 interleaved rounds" in said
        figure.draw_without_rendering()  # warnings are errors: a layout that does not fit would show here


@pytest.mark.parametrize("kind", SUITES)
def test_nothing_written_lies_outside_of_the_picture(suites, kind):
    for name, figure in figures.figures_of(suites[kind]).items():
        figure.draw_without_rendering()
        width, height = figure.canvas.get_width_height()
        boxes = {str(axes): axes.get_tightbbox() for axes in figure.axes}
        texts = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
        boxes |= {text.get_text(): text.get_window_extent() for text in texts}
        for what, box in boxes.items():
            inside = box.x0 > -1 and box.y0 > -1 and box.x1 < width + 1 and box.y1 < height + 1
            assert inside, f"{kind}/{name}: {what!r} at {box}"


def test_gpus_are_named_and_no_worker_stands_for_them():
    suite = records.suite("compare", records.compare_programs(4), rounds=2, device="cuda")
    for figure in figures.figures_of(suite).values():
        said = text_of(figure)
        assert "GPU: 4× Test GPU 80GB" in said and "stand for" not in said


def test_an_unfair_comparison_is_flagged_in_every_picture():
    programs = records.compare_programs()
    programs["ddp"]["compression"] = "fp16"
    drawn = figures.figures_of(records.suite("compare", programs, rounds=2))
    assert len(drawn) == 4
    for figure in drawn.values():
        assert "NOT A FAIR COMPARISON: gradient compression" in text_of(figure)
    assert text_of(drawn["ratios"]).count("[not a fair comparison]") == 4  # ddp with each of the four others


def test_a_fair_one_is_not(suites):
    assert style.flag(is_true(True)) == "" and style.flag(None) == ""
    assert style.flag(is_true(False)) == "NOT A FAIR COMPARISON: loader workers in total"
    for figure in figures.figures_of(suites["compare"]).values():
        assert "FAIR" not in text_of(figure)


def test_one_round_says_that_there_is_no_interval():
    suite = records.suite("compare", records.compare_programs(), rounds=1)
    drawn = figures.figures_of(suite)
    assert all("n = 1 round: no interval" in text_of(figure) for figure in drawn.values())
    assert "interval of" not in text_of(drawn["ratios"])
    for kind in ("weak", "breakdown", "knobs", "replay", "accuracy"):
        for figure in figures.figures_of(records.suite(kind, SUITES[kind], rounds=1)).values():
            assert "no interval" in text_of(figure)


def test_every_round_is_a_dot_and_an_outlier_has_a_ring():
    programs = records.compare_programs()
    programs["ddp"]["throughput"] = [91.0, 91.2, 90.8, 140.0, 91.1]
    result = comparison.compare_suite(records.suite("compare", programs, rounds=5))
    assert result.outliers["ddp"] == [3]
    lines = compare.draw(result).axes[0].get_lines()
    dots = [line for line in lines if line.get_marker() in "osD^v" and line.get_fillstyle() != "none"]
    rings = [line for line in lines if line.get_fillstyle() == "none"]
    assert len(dots) == len(result.pairs) and all(len(line.get_xdata()) == 5 for line in dots)
    ratio = 140.0 / result.suite.throughputs("single")[3]
    assert any(abs(x - ratio) < 1e-9 for line in rings for x in line.get_xdata())


def test_a_wild_interval_does_not_press_the_rounds_together():
    programs = {"ddp": {"mode": "ddp", "throughput": [90.0, 91.0]}, "dp": {"mode": "dp", "throughput": [60.0, 80.0]}}
    result = comparison.compare_suite(records.suite("compare", programs, rounds=2), base="ddp")
    assert result.pairs[0].comparison.high > 3
    axes = compare.draw(result).axes[0]
    low, high = axes.get_xlim()
    assert low < 0.6 and 1.02 < high < 1.5
    assert {line.get_marker() for line in axes.get_lines()} >= {"<", ">"}
    exposed = {"ddp": {"mode": "ddp", "throughput": [90.0, 60.0]}}
    exposed["ddp no_sync"] = {"mode": "ddp", "throughput": [100.0, 110.0], "sync": False}
    low, high = step.draw(records.suite("breakdown", exposed, rounds=2)).axes[0].get_xlim()
    assert -300 < low < 0 and high < 1300  # the longest step takes 1067 ms


def test_the_interval_that_is_drawn_is_the_one_that_was_computed(suites):
    result = comparison.compare_suite(suites["compare"])
    drawn = [sorted(line.get_xdata()) for line in compare.draw(result).axes[0].get_lines() if line.get_linewidth() == 4]
    assert drawn == [[pair.comparison.low, pair.comparison.high] for pair in result.pairs]


def test_two_writings_are_the_same_bytes(suites, tmp_path):
    paths = [
        figures.save(compare.draw(comparison.compare_suite(suites["compare"])), tmp_path / folder, "ratios")
        for folder in ("a", "b")
    ]
    assert [path.name for path in paths[0]] == ["ratios.svg", "ratios.png"]
    for one, other in zip(*paths, strict=True):
        assert one.read_bytes() == other.read_bytes()
    svg = paths[0][0].read_text()
    ElementTree.fromstring(svg)
    assert "<dc:date>" not in svg and "Matplotlib" not in svg


def test_a_users_own_settings_change_nothing(suites):
    result = comparison.compare_suite(suites["replay"])
    plain = figures.svg_of(replay.draw(result))
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": "mine", "lines.linewidth": 9, "figure.dpi": 50}):
        assert figures.svg_of(replay.draw(result)) == plain


def test_modes_differ_in_grey_too():
    looks = list(style.MODES.values())
    assert len({look.marker for look in looks}) == len({look.line for look in looks}) == len(looks)
    assert style.look_of("a mode to come") is style.look_of("a mode to come")
    phases = [(look.colour, look.hatch) for look in step.PHASES.values()]
    assert len(set(phases)) == len(phases)


# --- scaling --------------------------------------------------------------------------------------------------------


def test_speedup_and_efficiency_of_a_known_case():
    programs = {
        "single 1": {"mode": "single", "num_devices": 1, "throughput": [100.0, 110.0]},
        "ddp 4": {"mode": "ddp", "num_devices": 4, "throughput": [300.0, 330.0]},
        "independent 4": {"mode": "independent", "num_devices": 4, "throughput": [320.0, 352.0]},
    }
    result = comparison.compare_suite(records.suite("weak", programs, rounds=2))
    assert [round(x, 6) for x in scaling.speedup(result, "ddp 4", 4)] == [3.0, 3.0, 3.0]
    assert [round(x, 6) for x in scaling.efficiency(result, "ddp 4", 4)] == [75.0, 75.0, 75.0]
    assert scaling.speedup(result, "single 1", 1) == (1.0, None, None)
    assert "the bound" in text_of(scaling.draw(result))


# --- the step -------------------------------------------------------------------------------------------------------


def test_phases_add_up_to_the_step(suites):
    for role in suites["breakdown"].roles.values():
        total = sum(step.phases_ms(role).values())
        assert total == pytest.approx(sum(map(step.step_ms, role)) / len(role), rel=1e-9)


def test_exposed_communication_is_the_difference_by_round():
    programs = {
        "ddp": {"mode": "ddp", "throughput": [64.0, 32.0]},  # 64 images a step: 1 s, 2 s
        "ddp no_sync": {"mode": "ddp", "throughput": [128.0, 40.0], "sync": False},  # 0.5 s, 1.6 s
    }
    suite = records.suite("breakdown", programs, rounds=2)
    each, mean, low, high = step.exposed_comm(suite, "ddp")
    assert each == pytest.approx([500.0, 400.0]) and mean == pytest.approx(450.0)
    assert (low + high) / 2 == pytest.approx(450.0) and high - low == pytest.approx(2 * 12.7062 * 50.0, rel=1e-4)


def test_on_a_gpu_the_hosts_wait_is_cut_and_the_bar_ends_with_the_step():
    """The host waits 60 % of a step for data while the device computes: phases and wait together are 156 %."""
    found = records.suite_records("breakdown", records.breakdown_programs(), rounds=2, device="cuda")
    for record in found:
        for part in record["samples"]:
            part["data_wait_s"] = [0.6 * t for t in part["step_time_s"]]
    (suite,) = records.suites_of(found)
    axes = step.draw(suite).axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    ends = dict.fromkeys(range(len(names)), 0.0)
    for bar in axes.patches:
        y = round(bar.get_y() + bar.get_height() / 2)
        ends[y] = max(ends[y], bar.get_x() + bar.get_width())
    said = [text.get_text() for text in axes.texts]
    for y, role in enumerate(names):
        real_ms = sum(map(step.step_ms, suite.roles[role])) / 2
        assert ends[y] == pytest.approx(real_ms) and said[y] == style.number(real_ms)
    assert step.phases_ms(suite.roles["ddp"])["data wait"] == pytest.approx(
        0.04 * step.step_ms(suite.roles["ddp"][0]), rel=0.05
    )
    assert "the host's wait for data is cut" in text_of(step.draw(suite))


def test_exposed_communication_is_what_communication_adds(suites):
    said = text_of(step.draw(suites["breakdown"]))
    assert "what communication adds to the step, buffers and the cores that it takes included" in said
    assert "costs nothing" not in step.__doc__


def profiled(**options) -> list[dict]:
    """A breakdown with a profiled run of dp, whose scatter, replicate and gather take 4, 12.5 and 2 ms."""
    found = records.suite_records("breakdown", records.breakdown_programs(), rounds=2, **options)
    times = {"scatter": (0, 0.004), "replicate": (0.004, 0.0165), "forward": (0.0165, 0.08), "gather": (0.08, 0.082)}
    spans = [{"lane": "dp", "name": n, "start_s": a, "end_s": b, "bytes": None} for n, (a, b) in times.items()]
    one = {"step": 9, "step_s": 0.32, "spans": spans, "notes": []}
    labels = {"suite": found[0]["config"]["suite"], "role": "dp", "round": 0, "seconds": 900}
    return [*found, records.record("dp", profile=True, timeline=one, **labels)]


def test_dps_parts_are_given_one_by_one():
    (suite,) = records.suites_of(profiled())
    assert timeline.parts_ms(suite.extra[0]) == pytest.approx({"scatter": 4.0, "replicate": 12.5, "gather": 2.0})
    said = text_of(figures.figures_of(suite)["timeline"])
    assert "scatter 4 ms, replicate 12.5 ms, gather 2 ms" in said and "FAIR" not in said


def test_the_timeline_has_the_flag_of_the_comparison():
    found = profiled()
    for record in found:
        if record["config"]["mode"] == "ddp":
            for part in record["samples"]:
                part["facts"]["item_sync"] = True
    (suite,) = records.suites_of(found)
    assert "NOT A FAIR COMPARISON: extra work a step" in text_of(figures.figures_of(suite)["timeline"])
    assert "NOT A FAIR COMPARISON: extra work a step" in text_of(timeline.draw(suite))


def test_a_suite_of_profiled_runs_alone_has_a_timeline():
    (suite,) = records.suites_of(profiled()[-1:])
    assert not suite.roles and "n = 1 step a mode" in text_of(timeline.draw(suite))


def test_records_without_phase_times_are_all_other():
    record = records.record()
    for part in record["samples"]:
        del part["phase_time_s"]
    phases = step.phases_ms([record])
    assert phases["forward"] == 0 and phases["other"] == pytest.approx(0.98 * step.step_ms(record))


def test_the_picture_of_the_step_is_not_flagged_for_leaving_the_exchange_out(suites):
    assert "FAIR" not in text_of(step.draw(comparison.compare_suite(suites["breakdown"])))


# --- memory ---------------------------------------------------------------------------------------------------------


def test_each_device_has_its_own_bar_and_parts_end_at_their_figures():
    suite = records.suite("compare", records.compare_programs(2), rounds=2, device="cuda")
    axes = memory.draw(comparison.compare_suite(suite)).axes[0]
    bars = 1 + 4 * 2  # single, and four programs on two devices
    assert len(axes.get_yticks()) == bars and len(axes.patches) == bars * len(memory.PARTS)
    ends = [round(bar.get_x() + bar.get_width(), 4) for bar in axes.patches[: len(memory.PARTS)]]
    assert ends == [round(mib / 1024, 4) for mib in records.GPU_MIB.values()]


def test_parts_are_said_to_be_differences_of_peaks_of_different_moments():
    suite = records.suite("compare", records.compare_programs(2), rounds=2, device="cuda")
    assert "at different moments, and a part is the difference of two" in text_of(memory.draw(suite))


def test_a_figure_that_nobody_knows_is_named():
    partly = {"torch_allocated": 5.0, "torch_reserved": 6.0, "nvml_process": None, "nvml_device": 7.0}
    suite = records.suite("compare", records.compare_programs(), rounds=2, device="cuda", memory=partly)
    said = text_of(memory.draw(comparison.compare_suite(suite)))
    assert "Not known here: nvml_process" in said and "rest of the device" in said
    assert "Source: nvml_device" in text_of(memory.draw_over_time(comparison.compare_suite(suite)))


def test_the_peak_of_a_device_is_the_highest_of_all_rounds():
    low, high = (records.record(memory={"pss": gib, "rss_hwm": 1.0}) for gib in (0.5, 0.75))
    assert {d: peaks["pss"] for d, peaks in memory.devices_of([high, low]).items()} == {
        "process 0": 0.75,
        "process 1": 0.75,
    }


def test_ranks_that_share_a_gpu_are_told_apart():
    record = records.record(device="cuda")
    for peaks in record["summary"]["peak_memory_gib"]:
        peaks["device"] = "cuda:0"
    assert list(memory.devices_of([record])) == ["cuda:0 process 0", "cuda:0 process 1"]


def test_no_memory_at_all_is_still_a_picture():
    suite = records.suite("compare", records.compare_programs(), rounds=2, memory={"pss": None, "rss_hwm": None})
    result = comparison.compare_suite(suite)
    assert "not known" in text_of(memory.draw(result))
    assert "none recorded" in text_of(memory.draw_over_time(result))


# --- knobs ----------------------------------------------------------------------------------------------------------


def test_a_cell_for_each_setting(suites):
    figure = knobs.draw(suites["knobs"])
    cells = sum(len(axes.patches) for axes in figure.axes)
    assert cells == len(suites["knobs"].roles) - 1  # all but the base
    said = text_of(figure)
    assert "powersgd" in said and "bucket_cap_mb down, gradient_as_bucket_view across" in said


def test_the_base_and_what_chance_does_are_said(suites):
    said = text_of(knobs.draw(suites["knobs"]))
    assert "ddp: the settings of the run, all the engine's defaults." in said
    assert "12 settings compared, each at 95 %" in said and "one in twenty" in said
    tuned = {role: values | {"tuned": True, "batch": 32} for role, values in records.knob_programs().items()}
    said = text_of(knobs.draw(records.suite("knobs", tuned, rounds=2)))
    assert "not the engine's default (TUNED): gradient_as_bucket_view=1, static_graph=1." in said
    one = records.suite("knobs", records.knob_programs(), rounds=1)
    assert knobs.chance(one) == []


def test_a_hole_in_a_grid_is_left_open():
    programs = records.knob_programs()
    del programs["ddp bucket_cap_mb=5 gradient_as_bucket_view=1"]
    suite = records.suite("knobs", programs, rounds=2)
    assert sum(len(axes.patches) for axes in knobs.draw(suite).axes) == len(suite.roles) - 1


def test_a_sweep_without_settings_says_so():
    suite = records.suite("knobs", {"ddp": {"mode": "ddp"}, "horovod": {"mode": "horovod"}}, rounds=2)
    assert "no role of this suite sets a knob" in text_of(knobs.draw(suite))


def test_settings_without_a_grid_are_ratios_with_their_rounds():
    suite = records.suite("knobs", records.format_programs(), rounds=4)
    result = comparison.compare_suite(suite)
    assert result.certificate.fair, result.certificate.sentence()
    figure = knobs.draw(result)
    drawn = [sorted(line.get_xdata()) for line in figure.axes[0].get_lines() if line.get_linewidth() == 4]
    against_base = [pair.comparison for pair in result.pairs if pair.a == "single"]
    assert drawn == [[found.low, found.high] for found in against_base] and len(drawn) == 4
    said = text_of(figure)
    assert "single: the settings of the run, fp32." in said and "no timed step has any of it" in said
    assert "single precision=bf16 is slower than single" in said


def test_one_combination_of_two_knobs_is_no_grid():
    programs = records.knob_programs() | {"ddp overlap=0 static_graph=1": {"mode": "ddp", "throughput": 91.0}}
    suite = records.suite("knobs", programs, rounds=2)
    figure = knobs.draw(suite)
    assert sum(len(axes.patches) for axes in figure.axes) == len(programs) - 1
    assert "overlap + static_graph" in text_of(figure)


# --- replay ---------------------------------------------------------------------------------------------------------


def test_a_replay_says_how_far_the_verdict_moved(suites):
    said = text_of(replay.draw(suites["replay"]))
    assert re.search(r"Estimate: ×1.0[67] \(fair: ddp\) becomes ×0.92 \(unfair: ddp with a barrier\)", said)
    assert "NOT A FAIR COMPARISON: extra work a step" in said


def test_the_replays_programs_are_known_by_their_names_in_any_order():
    programs = dict(reversed(records.replay_programs().items()))
    suite = records.suite("replay", programs, rounds=3)
    rows = replay.pairs_of(comparison.compare_suite(suite))
    assert [(pair.a, pair.b) for pair in rows] == [
        ("base: dp", "fair: ddp"), ("base: dp", "unfair: ddp with a barrier"),
    ]  # fmt: skip


def test_a_replay_of_nothing_is_the_control():
    programs = {f"{part}: ddp": {"mode": "ddp", "throughput": 90.0} for part in ("base", "fair", "unfair")}
    suite = records.suite("replay", programs, rounds=3)
    assert replay.changed(suite) == []
    said = text_of(replay.draw(suite))
    assert "The control of the replays" in said and "nothing changed at all: the control" in said


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_picture_that_cannot_be_written_leaves_the_old_one(suites, tmp_path, monkeypatch):
    figure = replay.draw(suites["replay"])
    paths = figures.save(figure, tmp_path / "new", "one")
    before = [path.read_bytes() for path in paths]

    def full(self, content):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(type(tmp_path), "write_bytes", full)
        with pytest.raises(OSError, match="No space"):
            figures.save(figure, tmp_path / "new", "one")
    assert [path.read_bytes() for path in paths] == before
    assert sorted((tmp_path / "new").iterdir()) == sorted(paths)
