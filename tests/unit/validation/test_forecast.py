"""The forecast and the advice held against emulation: the drawing of the settings, the figures, the command, what is
committed."""

import dataclasses
import json
import statistics
import sys

import pytest

from bench.measure.environment import collect_environment
from bench.predict.emulation import record as records
from tests import emulations, profiles
from tests.profiles import PROFILE
from tests.shown import text_of
from tests.validation.forecast import __main__ as command
from tests.validation.forecast import advice, figure, measured, result, settings
from tests.validation.forecast.settings import ENGINES, Setting
from tests.validation.pages import manual

COMMITTED = manual.FORECAST_CHECK
FAST = dataclasses.replace(PROFILE, forward_s=0.1, backward_s=0.1, optimizer_s=0.01, other_s=0.0, tensors=tuple(
    dataclasses.replace(tensor, needed_s=0.0, ready_s=0.1) for tensor in PROFILE.tensors))  # fmt: skip
MADE_UP = dict.fromkeys(settings.MODELS, dataclasses.replace(FAST, factors=(0.9, 1.0, 1.2)))
DDP = ENGINES[0]


def row(steps_s, made_with=False, nodes=2, **other) -> dict:
    """A row of a setting: 20 MB over 100 Mbit/s."""
    return {"name": "a", "model": "gpt", "engine": DDP.name, "nodes": nodes, "rate_mbit": 100, "dilate": 4,
            "made_with": made_with, "steps_s": steps_s, "runs_s": [1.0], "cpu_share": 0.1,
            "emulated": 1} | other  # fmt: skip


def folder_of(tmp_path):
    """A folder with a profile of each model."""
    for model in settings.MODELS:
        made = profiles.record(tmp_path / model)
        (made / "record.json").rename(tmp_path / f"profile-{model}.json")
    return tmp_path


# --- the drawing ----------------------------------------------------------------------------------------------------


def test_the_same_settings_are_drawn_each_time_and_a_third_of_them_is_for_making():
    found = settings.drawn(MADE_UP)
    assert found == settings.drawn(MADE_UP) and len({each.name for each in found}) == len(found) >= 60
    assert sum(each.made_with for each in found) == -(-len(found) // 3)
    drawn = [(each.engine.name, each.nodes) for each in found]
    assert all(drawn.count((engine.name, nodes)) <= most for engine in ENGINES for nodes, most in
               settings.DRAWN.items())  # fmt: skip
    assert {engine for engine, _ in drawn} == {engine.name for engine in ENGINES}


def test_what_would_take_too_long_or_too_much_memory_is_left_out_and_counted():
    large = dataclasses.replace(PROFILE, tensors=tuple(
        dataclasses.replace(tensor, shape=(70, 10**6)) for tensor in PROFILE.tensors))  # fmt: skip
    slow = dataclasses.replace(PROFILE, forward_s=10.0)
    found = MADE_UP | {"vgg16": large, "resnet50": slow}
    assert "need more than 8 GB" in Setting("vgg16", DDP, 4, 1000).why_not(large)
    assert "would take more than 80 s" in Setting("resnet50", DDP, 2, 1000).why_not(slow)
    assert {each.model for each in settings.drawn(found)} <= {"resnet18", "gpt", "vgg16"}
    assert sum(result.judged({"rows": []}, found)["drawing"]["left_out"].values()) == sum(
        bool(each.why_not(found[each.model])) for each in settings.everything())  # fmt: skip


def test_more_nodes_and_faster_links_are_slowed_more():
    carried = [each.nodes * each.rate_mbit / each.dilate(PROFILE) for each in settings.everything()]
    assert max(carried) <= settings.CARRIED_MBIT
    power = next(engine for engine in ENGINES if engine.own_s)
    assert Setting("gpt", power, 8, 250).dilate(FAST) > Setting("gpt", DDP, 8, 250).dilate(FAST)


def test_weights_and_whole_gradients_before_powersgd_begins_have_their_time():
    power = next(engine for engine in ENGINES if engine.own_s)
    plain, slowed = (Setting("gpt", engine, 4, 250) for engine in (DDP, power))
    wire_s = 8 * FAST.nbytes / 250e6  # of all bytes once
    assert plain.before_s(FAST) == pytest.approx(2 * wire_s * plain.dilate(FAST))  # down a tree of four
    assert slowed.before_s(FAST) >= (2 + 2 * 1.5) * wire_s * slowed.dilate(FAST)  # and two rings


# --- the figures ----------------------------------------------------------------------------------------------------


def test_a_step_is_predicted_with_what_its_slowest_rank_drew():
    """Two of the nodes' draws differ, and the emulation's ranks make the same ones."""
    profile = MADE_UP["gpt"]
    draws = [records.drawn(profile.factors, 0, rank) for rank in range(4)]
    slowest = [max(next(draw) for draw in draws) for _ in range(settings.WARMUP + 3)][settings.WARMUP :]
    quiet = dataclasses.replace(profile, factors=(1.0,))
    at_median = result.predicted_s(row([1.0] * 3, nodes=4), quiet)
    found = result.predicted_s(row([1.0] * 3, nodes=4), profile)
    assert at_median[0] == at_median[1]
    assert [(said > at_median[0], said == at_median[0]) for said in found] == [(f > 1, f == 1) for f in slowest]


def test_what_the_model_was_made_with_and_what_judges_it_have_figures_of_their_own():
    """Errors without their sign: of the first twice too fast, of the second half as much too slow."""
    free = result.predicted_s(row([1.0] * 3), MADE_UP["gpt"])
    judging = [row([factor * seconds for seconds in free], name=str(factor)) for factor in (2.0, 0.8, 1.0)]
    found = result.judged({"rows": [row(free, made_with=True), *judging]}, MADE_UP)
    assert found["figures"]["made with"] == {"n": 1, "median": pytest.approx(0.0), "worst": pytest.approx(0.0)}
    assert found["figures"]["judged by"] == {"n": 3, "median": pytest.approx(0.25), "worst": pytest.approx(0.5)}
    assert [each["off"] for each in found["rows"]] == pytest.approx([0.0, -0.5, 0.25, 0.0])


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def emulator(monkeypatch):
    """In the place of an emulation: the seconds that are next, or a failure."""
    told, asked = [], []

    def emulate(setting, profile, folder, out):
        asked.append(setting.name)
        steps = told.pop(0) if told else [1.0, 1.0, 1.0]
        data = emulations.data(dilate=4.0, steps=3)
        for part in data["samples"]:
            part["step_time_s"] = [4 * seconds for seconds in steps]
        return records.EmulationRecord(data, "")

    monkeypatch.setattr(command, "emulate", emulate)
    monkeypatch.setattr(records.EmulationRecord, "cpu_share", 0.5)
    return told, asked


def test_what_is_in_the_file_is_not_emulated_again(tmp_path, emulator, capsys):
    folder, (_, asked) = folder_of(tmp_path), emulator
    assert command.main([str(folder), "--most=2"]) == 0
    assert len(set(asked)) == 2 and "settings are not emulated yet" in capsys.readouterr().out
    before = json.loads((folder / result.NAME).read_text())
    assert command.main([str(folder), "--most=1"]) == 0
    assert len(set(asked)) == 3
    after = json.loads((folder / result.NAME).read_text())
    assert [row["name"] for row in after["rows"][:2]] == [row["name"] for row in before["rows"]]
    assert command.main([str(folder), "--only-judge"]) == 0 and len(set(asked)) == 3
    assert {path.suffix for path in (folder / "pictures").iterdir()} == {".svg"}


def test_a_setting_whose_steps_scatter_is_emulated_once_more_and_the_steadier_counts(tmp_path, emulator):
    folder, (told, asked) = folder_of(tmp_path), emulator
    told += [[1.0, 5.0, 1.0], [1.0, 2.0, 1.0]]
    assert command.main([str(folder), "--most=1"]) == 0
    (found,) = json.loads((folder / result.NAME).read_text())["rows"]
    assert len(asked) == 2 and found["emulated"] == 2 and found["steps_s"] == [1.0, 2.0, 1.0]
    assert found["runs_s"] == [pytest.approx(4 / 3)]


def test_of_an_engine_whose_runs_differ_by_chance_the_mean_of_several_emulations_counts(tmp_path, emulator):
    told, asked = emulator
    told += [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [1.0, 9.0, 1.0], [3.0, 3.0, 3.0]]  # the third one scatters
    setting = Setting("gpt", next(engine for engine in ENGINES if engine.emulations == 3), 2, 500)
    found = command.emulated(setting, FAST, tmp_path, None)
    assert len(asked) == found["emulated"] == 4
    assert found["steps_s"] == [2.0, 2.0, 2.0] and found["runs_s"] == [1.0, 2.0, 3.0]


BROKEN, DEAF = "#!/bin/sh\necho broken >&2\nexit 3\n", "#!/bin/sh\ntrap '' TERM\nsleep 60 &\nsleep 60\n"


@pytest.mark.parametrize(("program", "said"), [(BROKEN, "broken"), (DEAF, "not within 1 s")])
def test_a_setting_that_fails_or_hangs_is_said_and_the_next_one_goes_on(program, said, tmp_path, monkeypatch, capsys):
    """Each is a process with a limit; here it ends without a record, or never."""
    folder, stand_in = folder_of(tmp_path), tmp_path / "program"
    stand_in.write_text(program)
    stand_in.chmod(0o700)
    monkeypatch.setattr(command, "START_S", 1.0)
    monkeypatch.setattr(command, "SLOWER", 0)
    monkeypatch.setattr(command, "GRACE_S", 1.0)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    assert command.main([str(folder), "--most=2"]) == 1
    errors = capsys.readouterr().err
    assert errors.count(said) == 2 and "none of the 2 settings could be emulated" in errors


def test_a_folder_without_profiles_is_refused_in_one_line(tmp_path, capsys):
    assert command.main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "profile-resnet18.json is no record" in error and error.count("\n") == 1


# --- the advice -----------------------------------------------------------------------------------------------------


def of_cluster(cluster, steps_s: dict[str, float]) -> dict:
    """The file's content where each program of a cluster took so long, and 1 s where nothing is said."""
    rows = [row([steps_s.get(each.engine.name, 1.0)] * 3, name=each.name, model=each.model, engine=each.engine.name,
                nodes=each.nodes) for each in cluster.settings()]  # fmt: skip
    return {"rows": rows, "environment": {}}


def test_clusters_are_drawn_of_those_on_which_every_program_can_be_emulated():
    large = dataclasses.replace(FAST, tensors=tuple(
        dataclasses.replace(tensor, shape=(70, 10**6)) for tensor in FAST.tensors))  # fmt: skip
    found = MADE_UP | {"vgg16": large}
    drawn = advice.drawn(found)
    assert drawn == advice.drawn(found) and len({each.name for each in drawn}) == len(drawn) == 20
    assert not any(setting.why_not(found[setting.model]) for setting in advice.left(found))
    assert all(len({setting.engine.name for setting in each.settings()}) == 6 for each in drawn)


def test_the_advice_is_judged_by_the_best_program_that_was_emulated():
    """The steps decide; one device counts as one, with the mean of what the ranks drew."""
    cluster = advice.drawn(MADE_UP)[0]
    profile = MADE_UP[cluster.model]
    advised = cluster.advised(profile)
    drew = [factor for step in result.drawn_factors(row([1.0] * 3, nodes=cluster.nodes), profile) for factor in step]
    alone = statistics.fmean(drew) * profile.step_s
    assert min(drew) < max(drew)
    best = next(each.engine.name for each in cluster.settings() if each.engine.name != advised)
    near = cluster.nodes * alone * 0.1
    rows = dict.fromkeys((each.engine.name for each in cluster.settings()), 2 * near) | {best: near}
    (found,) = advice.judged(of_cluster(cluster, rows), MADE_UP)["clusters"]
    assert found["best"] == best and found["advised"] == advised
    assert found["longer"] == {name: pytest.approx(seconds / near - 1) for name, seconds in rows.items()} | {
        "single": pytest.approx(9.0)}  # fmt: skip
    slow = dict.fromkeys(rows, 1.01 * cluster.nodes * alone)
    (found,) = advice.judged(of_cluster(cluster, slow), MADE_UP)["clusters"]
    assert found["best"] == "single" and found["longer"]["zero1"] == pytest.approx(0.01)


def test_a_cluster_counts_when_all_of_its_programs_are_there_and_within_3_percent_is_as_good():
    cluster = advice.drawn(MADE_UP)[0]
    advised = cluster.advised(MADE_UP[cluster.model])
    for factor, count in ((1.02, "in 1 of 1"), (1.04, "in 0 of 1")):
        data = of_cluster(cluster, {advised: factor * 1e-3} | {
            each.engine.name: 1e-3 for each in cluster.settings() if each.engine.name != advised})  # fmt: skip
        assert count in text_of_answer(advice.judged(data, MADE_UP))
    data["rows"].pop()
    assert not advice.judged(data, MADE_UP)["clusters"]


def text_of_answer(data) -> str:
    """What is said, but for the machine."""
    machine = {"machine": {"cpu_model": "none", "usable_cores": 2}, "versions": {}}
    return " ".join(advice.answer(data | {"environment": machine}))


@pytest.mark.parametrize(("first", "second", "words"), [
    pytest.param(result, advice, ["--advice"], id="advice"), pytest.param(advice, result, [], id="forecast"),
])  # fmt: skip
def test_what_one_check_has_emulated_the_other_one_takes(first, second, words, tmp_path, emulator):
    folder, (_, asked) = folder_of(tmp_path), emulator
    found = result.read_profiles(folder)
    wanted = {each.name: each for each in second.left(found)}
    shared, apart = ([each for each in first.left(found) if (each.name in wanted) == there][:2] for there in (1, 0))
    rows = [row([1.0] * 3, each.made_with, each.nodes, name=each.name, model=each.model, engine=each.engine.name)
            for each in (*shared, *apart)]  # fmt: skip
    first.write(folder, {first.KEY: 1, "environment": collect_environment(), "rows": rows})
    assert command.main([str(folder), "--most=1", *words]) == 0
    taken = second.read(folder)["rows"]
    assert [each["name"] for each in taken] == [*(each.name for each in shared), *asked] and len(asked) == 1
    assert all(each.get("made_with", False) == wanted[each["name"]].made_with for each in taken)


# --- what is committed ------------------------------------------------------------------------------------------------


def test_the_committed_figures_are_those_of_the_forecast_as_it_is():
    """From the committed profiles and seconds; and the settings are those that are drawn."""
    found, data = result.read_profiles(COMMITTED), result.read(COMMITTED)
    again = json.loads(json.dumps(result.judged(data, found)))
    assert again["drawing"] == data["drawing"]
    for said, computed in zip(data["rows"], again["rows"], strict=True):
        assert computed == said | {name: pytest.approx(said[name]) for name in ("emulated_s", "predicted_s", "off")}
    rows, left_out = measured.rows_of(str(COMMITTED / "measured"), result.read_records(COMMITTED))
    assert not left_out and again["measured"] == [
        {name: pytest.approx(value) for name, value in row.items()} for row in measured.judged(rows, found)
    ]
    drawn = {each.name: each.made_with for each in settings.drawn(found)}
    assert {each["name"]: each["made_with"] for each in data["rows"]}.items() <= drawn.items()


def test_the_committed_judgement_of_the_advice_is_that_of_the_advice_as_it_is():
    """From the committed profiles and seconds; and the clusters are those that are drawn."""
    found, data = result.read_profiles(COMMITTED), advice.read(COMMITTED)
    again = json.loads(json.dumps(advice.judged(data, found)))
    assert again["drawing"] == data["drawing"] and again["rows"] == data["rows"]
    for said, computed in zip(data["clusters"], again["clusters"], strict=True):
        assert computed == said | {name: pytest.approx(said[name]) for name in ("speeds", "longer")}
    assert {each["name"] for each in data["rows"]} <= {each.name for each in advice.left(found)}
    emulated = {row["name"]: row["steps_s"] for row in result.read(COMMITTED)["rows"]}
    assert all(emulated.get(row["name"], row["steps_s"]) == row["steps_s"] for row in data["rows"])


def test_the_picture_says_what_it_is_of():
    data = result.read(COMMITTED)
    said = text_of(figure.draw(data))
    assert "Emulated and predicted" in said and "namespaces of one machine" in said
    for name, figures in data["figures"].items():
        assert f"{name} ({figures['n']})" in said
