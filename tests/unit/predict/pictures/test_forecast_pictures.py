"""A forecast's pictures: which records belong to it, and that what is drawn is what was computed. How they look is
proven by the goldens."""

import dataclasses
import json

import pytest

from bench.__main__ import main
from bench.predict.pictures import figures, points
from bench.predict.pictures.points import Points
from bench.predict.step import result
from bench.predict.step.engines import ENGINES
from bench.predict.step.link import Link
from bench.record.schema import BadRecord
from tests import forecasts, records
from tests.shown import text_of

ASKED = forecasts.asked()


def put(folder, record, name: str):
    """A record in its own run folder."""
    (place := folder / record.run_id).mkdir(parents=True)
    (place / name).write_text(json.dumps(record.data))
    return place


def test_a_run_belongs_by_whatever_name_it_is_stored_and_other_files_do_not(tmp_path):
    folder = put(tmp_path, forecasts.measured(), "record.json")
    put(tmp_path / "others", forecasts.measured("horovod"), "disturbed.json")
    put(tmp_path, forecasts.emulated(ASKED.profile, "fsdp"), "emulation.json")
    put(tmp_path, records.record("single", num_devices=1), "record.json")
    (folder / "copy.json").write_text((folder / "record.json").read_text())
    (tmp_path / "notes.json").write_text("{}")
    found = points.find([str(tmp_path)], ASKED)
    assert sorted(record.config.mode for record in found.measured) == ["ddp", "horovod"]
    assert [record.config.mode for record in found.emulated] == ["fsdp"] and not found.left_out
    (folder / "record.json").write_text("{")
    with pytest.raises(BadRecord):
        points.find([str(tmp_path)], ASKED)


(ON_ANOTHER,) = records.edited(
    [forecasts.measured()], lambda data: data["environment"]["machine"].update(cpu_model="Other(R) Processor")
)


@pytest.mark.parametrize(("record", "value"), [
    (forecasts.measured(batch=64), "BATCH=64"),
    (forecasts.measured(model="resnet50"), "MODEL=resnet50"),
    (forecasts.measured(precision="bf16"), "PRECISION=bf16"),
    (records.record("ddp"), "link"),
    (forecasts.measured(label="2 namespaces of one machine, links limited to 100 Mbit/s"), "100 Mbit/s"),
    (forecasts.measured(label="2 namespaces of one machine, links without a limit"), "links"),
    (forecasts.measured(compression="fp16"), "COMPRESSION=fp16"),
    (forecasts.measured(sync=False), "INJECT=no-exchange"),
    (forecasts.measured("horovod", cycle_time_ms=5.0), "CYCLE_TIME_MS=5.0"),
    (forecasts.measured(throughput=260.0), "slower"),  # than one device at the time of the profile
    (forecasts.measured(num_devices=4, label="4 namespaces of one machine, links limited to 1 Gbit/s"), "2 cores"),
    (ON_ANOTHER, "Other(R) Processor"),
    (forecasts.emulated(dataclasses.replace(ASKED.profile, source="another")), "another"),
    (forecasts.emulated(ASKED.profile, rate_mbit=250.0), "250 Mbit/s"),
])  # fmt: skip
def test_what_is_of_another_batch_machine_engine_or_link_does_not_belong(record, value):
    assert value in points.why_not(record, ASKED)


def test_a_measured_link_takes_runs_of_its_own_network():
    between = Link(1e-4, 1e-8, "measured", "gloo", idle_in_beta=True)
    asked = dataclasses.replace(ASKED, link=between)
    assert points.why_not(forecasts.measured(label=None), asked) == ""
    assert "1 Gbit/s" in points.why_not(forecasts.measured(), asked)


def test_steps_beside_which_horovods_timeline_ran_count_only_where_there_are_no_others():
    bare, slowed = (forecasts.emulated(ASKED.profile, "horovod", watched=on) for on in (False, True))
    assert points.by_place([slowed, bare]) == {("horovod", 2): [bare]}
    assert points.by_place([slowed]) == {("horovod", 2): [slowed]}


def test_measured_and_emulated_marks_stand_at_their_efficiency_and_say_which_they_are():
    run, emulated = forecasts.measured(throughput=120.0), forecasts.emulated(ASKED.profile, ranks=8, step_s=0.6)
    found = [result.forecast(ASKED.profile, config, 8, ASKED.link) for config in ASKED.configs.values()]
    figure = figures.draw_efficiency(ASKED, found, Points([run], [emulated]))
    one = ASKED.profile.units / ASKED.profile.mean_step_s
    marks = {line.get_marker(): line for line in figure.axes[0].get_lines() if line.get_marker() in ("o", "s")}
    assert marks["o"].get_ydata()[0] == pytest.approx(100 * 120.0 / (2 * one))
    assert marks["s"].get_ydata()[0] == pytest.approx(100 * (8 * 32 / 0.6) / (8 * one))
    place = -1.5 * figures.DODGE  # ddp is the first of four modes
    assert [marks[name].get_xdata()[0] for name in "os"] == pytest.approx([1 + place, 3 + place])
    lines = [line for line in figure.axes[0].get_lines() if line.get_marker() == "None"]
    assert {round(line.get_ydata()[-1], 6) for line in lines} == {round(100 * each.efficiency, 6) for each in found}
    four = result.forecast(ASKED.profile, ASKED.configs["ddp"], 4, ASKED.link)  # nobody asked: on the way to 8
    assert any(100 * four.efficiency == pytest.approx(line.get_ydata()[2]) for line in lines)
    assert "×4" in text_of(figure)


def test_the_band_of_a_longer_step_and_the_same_computation_is_lower():
    profile = dataclasses.replace(ASKED.profile, factors=(0.9, 1.0, 1.1))
    found = result.forecast(profile, ASKED.configs["ddp"], 8, ASKED.link)
    low, high = found.efficiency_ends
    assert low < found.efficiency < high
    free = result.forecast(profile, ASKED.configs["ddp"], 1, Link(0.0, 0.0, ""))
    assert free.efficiency_ends == pytest.approx((1.0, 1.0))  # a slower device alone is no less efficient


@pytest.mark.parametrize("mode", list(ENGINES))
def test_a_predicted_steps_phases_fill_it_and_hold_what_is_computed(mode):
    step = ENGINES[mode](ASKED.profile, ASKED.configs[mode], 4, ASKED.link)
    spans = figures.spans_of(step)
    phases = [span for span in spans if span["lane"] == "phase"]
    ends = [0.0, *(span["end_s"] for span in phases)]
    assert [span["start_s"] for span in phases] == ends[:-1] and ends[-1] == pytest.approx(step.seconds)
    assert ("synchronize" in {span["name"] for span in phases}) == (mode == "horovod")
    busy = sum(span["end_s"] - span["start_s"] for span in spans if span["lane"] == "compute")
    assert busy == pytest.approx(step.seconds - step.exposed_s)


def test_the_emulated_step_stands_below_the_predicted_one_in_seconds_that_it_stands_for():
    emulated = forecasts.emulated(ASKED.profile, ranks=8, watched=True)
    figure = figures.draw_timeline(ASKED, 64, Points(emulated=[emulated, forecasts.emulated(ASKED.profile, "fsdp")]))
    assert "on 8 devices" in text_of(figure) and "520 ms emulated, ×4" in text_of(figure)
    assert max(span["end_s"] for span in emulated.timeline) == pytest.approx(0.52)
    assert "on 64 devices" in text_of(figures.draw_timeline(ASKED, 64, Points()))


@pytest.fixture
def profile(tmp_path) -> str:
    return str(put(tmp_path / "profile", ASKED.record, "record.json"))


def test_out_has_every_picture_and_says_what_was_left_out(profile, tmp_path, capsys):
    put(tmp_path / "there", forecasts.measured(), "record.json")
    put(tmp_path / "there", forecasts.measured(batch=64, seconds=60.0), "record.json")
    words = ["--link=1gbit,50us", f"--out={tmp_path / 'out'}", f"--points={tmp_path / 'there'}"]
    assert main(["predict", "step", profile, "--devices=2", *words]) == 0
    assert "BATCH=64" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "out" / "pictures").iterdir()}
    assert names == {f"forecast-{name}.svg" for name in ("efficiency", "timeline")}
    one = [result.forecast(ASKED.profile, ASKED.configs["ddp"], 1, ASKED.link)]
    for figure in figures.figures(ASKED, one, Points()).values():
        figure.draw_without_rendering()


def test_several_records_fit_the_forecast_of_the_modes_that_they_measured(profile, tmp_path, capsys):
    run = put(tmp_path / "runs", forecasts.measured(), "record.json")
    words = ["--link=1gbit,50us", "--devices=2,8"]
    assert main(["predict", "step", profile, str(run), *words, f"--out={tmp_path / 'out'}", "--explain"]) == 0
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines() if line.split()[:1] in [[mode] for mode in ENGINES]]
    assert {row[0] for row in rows} == {"ddp"} and rows[0][1] == "2"
    assert float(rows[0][2]) == pytest.approx(1e3 * 64 / 120, rel=0.02)  # as measured
    assert said.count("1 (n = 1), 2 (n = 1)") == 5  # what was fitted, and to how many runs
    assert [path.name for path in (tmp_path / "out" / "pictures").iterdir()] == ["forecast-fitted.svg"]
    assert main(["predict", "step", f"--record={profile},{run}", *words]) == 0  # as make gives it
    assert [line for line in capsys.readouterr().out.splitlines() if "ddp" in line][:2] == [
        line for line in said.splitlines() if "ddp" in line][:2]  # fmt: skip
    for more, value in (([str(tmp_path / "none")], "none"), ([str(run), "--modes=horovod"], "RECORD")):
        assert main(["predict", "step", profile, *more, *words]) == 2
        error = capsys.readouterr().err
        assert value in error and error.count("\n") == 1


@pytest.mark.parametrize(("place", "value"), [("empty", "empty"), ("wrong", "BATCH=64")])
def test_points_that_cannot_be_drawn_are_refused_in_one_line(place, value, profile, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    put(tmp_path / "wrong", forecasts.measured(batch=64), "record.json")
    words = ["--link=1gbit,50us", f"--points={tmp_path / place}", f"--out={tmp_path / 'out'}"]
    assert main(["predict", "step", profile, *words]) == 2
    error = capsys.readouterr().err
    assert value in error and error.count("\n") == 1 and not (tmp_path / "out").exists()
