"""The forecast and the advice compared with emulation: the drawing of the settings, the figures, the command, what is
committed."""

import dataclasses
import json
import statistics

import pytest

from bench.predict.emulation import record as records
from tests.profiles import PROFILE
from tests.shown import text_of
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
    assert Setting("vgg16", DDP, 4, 1000).why_not(large) and Setting("resnet50", DDP, 2, 1000).why_not(slow)
    assert {each.model for each in settings.drawn(found)} <= {"resnet18", "gpt", "vgg16"}
    assert sum(result.judged({"rows": []}, found)["drawing"]["left_out"].values()) == sum(
        bool(each.why_not(found[each.model])) for each in settings.everything())  # fmt: skip
    clusters = advice.drawn(found)  # those on which every program can be emulated
    assert clusters == advice.drawn(found) and len({each.name for each in clusters}) == len(clusters) > 0
    assert not any(setting.why_not(found[setting.model]) for setting in advice.left(found))


def test_a_step_is_predicted_with_what_its_slowest_rank_drew():
    """Two of the nodes' draws differ, and the emulation's ranks make the same ones."""
    profile = MADE_UP["gpt"]
    draws = [records.draw_factors(profile.factors, 0, rank) for rank in range(4)]
    slowest = [max(next(draw) for draw in draws) for _ in range(settings.WARMUP + 3)][settings.WARMUP :]
    quiet = dataclasses.replace(profile, factors=(1.0,))
    at_median = result.predicted_s(row([1.0] * 3, nodes=4), quiet)
    found = result.predicted_s(row([1.0] * 3, nodes=4), profile)
    assert at_median[0] == at_median[1]
    assert [(said > at_median[0], said == at_median[0]) for said in found] == [(f > 1, f == 1) for f in slowest]


def of_cluster(cluster, steps_s: dict[str, float]) -> dict:
    """The file's content where each program of a cluster took so long, and 1 s where nothing is said."""
    rows = [row([steps_s.get(each.engine.name, 1.0)] * 3, name=each.name, model=each.model, engine=each.engine.name,
                nodes=each.nodes) for each in cluster.settings()]  # fmt: skip
    return {"rows": rows, "environment": {}}


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
    said = text_of(figure.draw(result.read(COMMITTED)))
    for name, values in result.read(COMMITTED)["figures"].items():
        assert f"{name} ({values['n']})" in said
