"""The rules of `bench predict mode`, on made-up rounds, parts, profiles and links; and the command on records."""

import dataclasses

import pytest

from bench.__main__ import main
from bench.analysis import style
from bench.config.options import RunConfig
from bench.predict.advice import answers, cluster
from bench.predict.advice.facts import COMPUTATION, DATA_WAIT, EXPOSED, IMBALANCE, Facts, Way
from bench.predict.step.fit import Fit, Point
from bench.predict.step.link import Link
from tests import profiles, records
from tests.profiles import PROFILE

WAVER = (0.0, 0.01, -0.01)
SLOW = Link(1e-3, 1e-8, "a slow link")
MEASURED = Link(1e-3, 1e-8, "a measured link", "gloo", (5e-4, 2e-3), (9e-9, 1.1e-8))


def way(
    mode: str, speed: float, num_devices: int = 2, device: str = "cpu", noise: int = 0, parts=None, **options
) -> Way:
    """A program with three rounds around a speed. noise: by how many rounds its waver is shifted."""
    config = RunConfig(mode=mode, num_devices=1 if mode == "single" else num_devices, device=device, **options)
    rounds = [speed * (1 + WAVER[(n + noise) % 3]) for n in range(3)]
    shares = parts or {COMPUTATION: 1.0}
    return Way(mode, config, rounds, {name: [share * 1e3 / x for x in rounds] for name, share in shares.items()})


def said(found: Facts) -> dict[str, str]:
    """First word of a heading -> all that is said below it."""
    return {answer.heading.split()[0]: "\n".join(answer.lines) for answer in answers.advise(found)}


def decided(*ways: Way) -> tuple[str, bool]:
    """The mode that is advised, and whether to distribute; both are in what is said."""
    advised = answers.choose(ways).advised.label
    _, best, pair = answers.distribution(ways)
    found = said(Facts(ways))
    assert f"use {advised}" in found["Which"] and best.label in found["Whether"]
    assert ("do not" in found["Whether"]) != pair.shows_faster(best)
    return advised, pair.shows_faster(best)


def test_what_is_faster_is_advised_with_its_interval():
    assert decided(way("single", 100), way("ddp", 70), way("horovod", 60)) == ("single", False)
    ways = (way("single", 100, device="cuda"), way("ddp", 180, device="cuda", noise=1), way("dp", 120, device="cuda"))
    assert decided(*ways) == ("ddp", True)
    pair = answers.compared(ways, ways[1], ways[0]).found
    assert f"{100 * pair.low - 100:.1f}–{100 * pair.high - 100:.1f} %" in said(Facts(ways))["Measured"]


@pytest.mark.parametrize(("faster", "slower", "advised"), [
    ("ddp", "single", "single"), ("horovod", "ddp", "ddp"), ("dp", "ddp", "ddp"), ("zero1", "ddp", "ddp"),
    ("dp", "horovod", "horovod"),
])  # fmt: skip
def test_where_intervals_overlap_the_simpler_mode_is_advised(faster, slower, advised):
    found = answers.choose((way(slower, 100, noise=1), way(faster, 100.5)))
    assert found.best.label == faster and found.advised.label == advised


def test_a_difference_that_is_too_small_to_matter_is_none():
    """Shown to exist, and within 2 %: the simpler of the two, and nothing is distributed."""
    ways = way("single", 100), way("ddp", 101)
    assert answers.choose(ways).pairs[0].found.verdict == "tie" and decided(*ways) == ("single", False)


def test_a_mode_with_another_update_is_never_advised():
    ways = way("single", 100), way("ddp", 120), way("local", 300)
    assert decided(*ways) == ("ddp", True)
    found = said(Facts(ways))
    assert "local" not in found["Whether"] and "local" in found["Unknown"]


def tried(found: Way, **known) -> list[str]:
    """The first words of what is to be tried, in its order."""
    return [trial.words.split(":")[0] for trial in answers.trials(found, Facts((found,), **known))]


def test_the_largest_part_of_the_step_says_what_to_try_first():
    shares = {"ddp": {COMPUTATION: 0.5, EXPOSED: 0.4, DATA_WAIT: 0.1}, "dp": {COMPUTATION: 0.7, IMBALANCE: 0.3}}
    assert tried(way("ddp", 100, parts=shares["ddp"]))[0] == "COMPRESSION=fp16"
    assert "60.0 %" in answers.step_lines(way("ddp", 100, parts={COMPUTATION: 0.4, EXPOSED: 0.6}), Facts())[0]
    waits = way("ddp", 100, parts={COMPUTATION: 0.3, EXPOSED: 0.2, DATA_WAIT: 0.5}, workers=2)
    first, second, *_ = answers.trials(waits, Facts())
    assert first.gain == pytest.approx(0.5) and "WORKERS" in first.words and "50.0 % [" in first.words
    assert second.words.startswith("COMPRESSION=fp16")
    assert "bench doctor" in answers.trials(way("ddp", 9, parts=shares["dp"]), Facts())[0].words
    assert tried(way("ddp", 9, parts={COMPUTATION: 0.5, EXPOSED: 0.5}, overlap=False))[0] == "OVERLAP=1"
    (only,) = answers.trials(way("single", 100), Facts())
    assert only.gain is None and "make sweep MODE=single" in only.words


def test_what_is_exposed_is_the_most_that_compression_can_gain():
    """As much as before is hidden, so half the bytes may save more than half of it."""
    parts = {COMPUTATION: 0.6, EXPOSED: 0.4}
    (trial,) = answers.fewer_bytes(way("ddp", 100, parts=parts), Facts())
    assert trial.gain == pytest.approx(0.4)
    assert not answers.fewer_bytes(way("fsdp", 100, parts=parts), Facts())  # has none
    assert not answers.fewer_bytes(way("ddp", 100, parts=parts, compression="fp16"), Facts())


def test_the_forecast_says_the_gain_of_compression_where_the_link_was_measured_here():
    """A link that was only given is another cluster's, and enters no line about what was measured."""
    found = way("ddp", 100, parts={COMPUTATION: 0.2, EXPOSED: 0.8})
    (here,) = answers.fewer_bytes(found, Facts((found,), profile=PROFILE, link=SLOW, own_link=MEASURED))
    (elsewhere,) = answers.fewer_bytes(found, Facts((found,), profile=PROFILE, link=SLOW))
    gain = answers.saved(PROFILE, found.config, 2, MEASURED)
    assert 0 < gain < 0.8 and here.gain == pytest.approx(gain) and f"{100 * gain:.1f} %" in here.words
    assert elsewhere.gain == pytest.approx(0.8) and "predict" not in elsewhere.words


def test_of_the_distributed_modes_one_whose_communication_is_known_is_taken_apart():
    parts = {COMPUTATION: 0.9, EXPOSED: 0.1}
    ways = (way("single", 100), way("dp", 90), way("ddp", 80, parts=parts), way("horovod", 70, parts=parts))
    assert [each.label for each in answers.ways_to_explain(Facts(ways))] == ["single", "ddp"]
    assert [each.label for each in answers.ways_to_explain(Facts(ways[:2]))] == ["single", "dp"]


def test_the_number_of_devices_at_which_the_efficiency_falls_below_80_percent():
    """Once communication is a quarter of what is computed, a step is 1.25 times as long."""
    assert cluster.below(lambda ranks: 1 / (1 + 0.01 * ranks)) == 26
    assert cluster.below(lambda ranks: 0.8) is None
    assert cluster.below(lambda ranks: 0.79 if ranks > 511 else 1.0) == 512
    (line,) = (each for each in cluster.efficiency_lines(Facts(profile=PROFILE, link=SLOW)) if ": ddp:" in each)
    number = int(line.split("from ")[1].split()[0])
    at = {n: cluster.result.forecast(PROFILE, RunConfig(mode="ddp"), n, SLOW).efficiency for n in (number - 1, number)}
    assert at[number] < 0.8 <= at[number - 1] and "[" not in line
    assert "[" in said(Facts(profile=PROFILE, link=MEASURED))["How"]


def test_only_measured_modes_are_predicted_where_a_forecast_is_fitted():
    """Without a fit a mode looks faster than it would be beside one that has lost what was measured."""
    points = [Point(1, (PROFILE.mean_step_s,)), Point(2, (5.0, 5.1)), Point(4, (5.4, 5.3))]
    fits = {"zero1": Fit(PROFILE, RunConfig(mode="zero1"), SLOW, points)}
    facts = Facts((way("single", 100), way("zero1", 50)), profile=PROFILE, link=SLOW, fits=fits, nodes=8)
    found, bare = said(facts), said(dataclasses.replace(facts, fits={}))
    assert "ddp" not in found["On"] + found["How"] and "zero1: " in found["On"]
    assert "[" in found["How"] and "zero1 on 2 and 4 devices" in found["Unknown"]
    assert "ddp" in bare["On"] and "[" not in bare["How"]
    (each,) = (each for each in cluster.forecasts(facts, 8) if each.mode == "zero1")
    assert each.low_s < each.step_s < each.high_s and each.step_s > 5.3


def test_a_cluster_that_is_not_there_is_predicted_in_every_line():
    ways = (way("single", 100), way("ddp", 50))
    found = said(Facts(ways, profile=PROFILE, link=SLOW, nodes=8))
    lines = found["On"].splitlines()
    assert all(line.startswith("predicted") for line in lines) and "COMPRESSION=fp16" in lines[0]
    assert "predict" not in found["Which"] + found["Whether"] + found["What"]


@pytest.mark.parametrize(("longer", "advised"), [(1.06, "horovod"), (1.01, "ddp")])
def test_forecasts_share_one_profile_and_are_compared_at_the_same_end(longer, advised):
    """Intervals that overlap are not a reason to call 6 % nothing: both steps move with the same profile."""
    forecasts = cluster.forecasts(Facts(profile=PROFILE, link=SLOW), 4)
    plain = {each.mode: each for each in forecasts if each.config.compression == "none"}
    found = [dataclasses.replace(plain[mode], step_s=step_s, low_s=0.8 * step_s, high_s=1.2 * step_s)
             for mode, step_s in (("horovod", 1.0), ("ddp", longer))]  # fmt: skip
    assert cluster.advised(found).mode == advised


def test_one_device_that_does_as_much_as_many_is_advised():
    """Two devices that take twice as long for a step do what one does. A very slow link is not distributed over."""
    forecasts = cluster.forecasts(Facts(profile=PROFILE, link=SLOW), 2)
    found = {each.mode: each for each in forecasts if each.config.compression == "none"}
    one = found["single"]
    as_much = dataclasses.replace(found["ddp"], step_s=1.99 * one.step_s, low_s=None, high_s=None)
    assert as_much.throughput > one.throughput and cluster.advised([as_much, one]) is one
    assert cluster.advised([more := dataclasses.replace(as_much, step_s=1.9 * one.step_s), one]) is more
    slow = Facts(profile=PROFILE, link=Link(1.0, 1e-5, "a very slow link"), nodes=2, price=3.6, examples=1000)
    assert cluster.advised(cluster.forecasts(slow, 2)).ranks == 1
    assert "single on one device" in said(slow)["Cost"]


def test_full_precision_is_advised_where_half_the_bytes_gain_nothing():
    found = cluster.forecasts(Facts(profile=PROFILE, link=Link(0.0, 0.0, "a link")), 4)
    assert cluster.advised([each for each in found if each.mode == "ddp"]).config.compression == "none"


def test_the_cost_of_an_epoch_is_devices_times_hours_times_price():
    ways = (way("single", 100, device="cuda"), way("ddp", 180, num_devices=2, device="cuda"))
    known = Facts(ways, price=3.6, examples=1000)
    flat = [dataclasses.replace(each, throughputs=[each.throughputs[0]] * 3) for each in ways]
    assert answers.cost(flat[0], known)[0] == pytest.approx(3.6 * 1000 / 100 / 3600)
    assert answers.cost(flat[1], known) == pytest.approx((2 * 3.6 * 1000 / 180 / 3600,) * 3)
    assert [line.split(":")[0] for line in said(known)["Cost"].splitlines()] == ["single", "ddp"]
    # CPU workers of one machine cost one machine.
    assert way("ddp", 100, num_devices=4).paid == 1 and way("ddp", 100, num_devices=4, device="cuda").paid == 4
    far = Facts(profile=PROFILE, link=SLOW, nodes=4, price=3600.0, examples=8, per_example=4)
    step_s = cluster.advised(cluster.forecasts(far, 4)).step_s
    assert said(far)["Cost"].startswith("predicted: ") and style.number(step_s) in cluster.cost_line(far)


def test_what_fits_is_told_of_each_mode_and_what_could_not_be_known_is_a_list():
    fits = said(Facts(batches={"single": 512, "ddp": 0}, batches_said=("of 16 GiB",)))["Largest"]
    lines = fits.splitlines()
    assert "single: 512" in lines[0] and "ddp:" in lines[1] and lines[2:] == ["of 16 GiB"]
    found = said(Facts((way("ddp", 100),), price=1.0, unknown=("why",)))["Unknown"].splitlines()
    assert found[0] == "why" and len(found) >= 6 and any("EXAMPLES" in line for line in found)
    assert "LINK=" in said(Facts(profile=PROFILE))["Unknown"]


def printed(folder, capsys, found: list) -> str:
    """What the command prints of these records and a profile of one device."""
    records.store(folder, found)
    profiles.record(folder / "profile")
    before = sorted(folder.rglob("*"))
    assert main(["predict", "mode", f"--records={folder}", "--link=10gbit,50us", "--devices=8", "--price=2"]) == 0
    assert sorted(folder.rglob("*")) == before
    return capsys.readouterr().out


RECOMMEND = ["Which mode", "Whether to distribute", "What limits the step time"]


def test_every_answer_is_given_in_its_order(tmp_path, capsys):
    out = printed(tmp_path, capsys, records.suite_records("compare", records.compare_programs(), rounds=4))
    headings = [*RECOMMEND, "On 8 devices", "How far it scales", "Cost of an epoch", "Unknown"]
    assert [line for line in out.splitlines() if line in headings] == headings
    assert "- use single" in out and out.splitlines()[-1] == f"records: {tmp_path}"


@pytest.mark.parametrize("rounds", [2, 8])
def test_disturbed_runs_and_previews_recommend_nothing_and_show_what_was_measured(tmp_path, capsys, rounds):
    found = records.suite_records("compare", records.compare_programs(ddp=300.0), rounds=rounds)
    out = printed(tmp_path, capsys, found if rounds == 2 else records.loaded(found, 0.41))
    assert {"No recommendation", "Measured"} <= {*out.splitlines()} and not {*RECOMMEND} & {*out.splitlines()}
    assert "- use " not in out and "distribute: ddp" not in out and "no verdict" in out
