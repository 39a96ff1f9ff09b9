"""The rules of `bench predict mode`, on made-up rounds, parts, profiles and links."""

import dataclasses

import pytest

from bench.analysis import style
from bench.config.options import RunConfig
from bench.predict.advice import answers, cluster
from bench.predict.advice.facts import COMPUTATION, DATA_WAIT, EXPOSED, IMBALANCE, Facts, Way
from bench.predict.step.link import Link
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
    """Heading -> all that is said below it."""
    return {answer.heading: "\n".join(answer.lines) for answer in answers.advise(found)}


def test_one_process_that_is_faster_is_advised_and_not_to_distribute():
    found = said(Facts((way("single", 100), way("ddp", 70), way("horovod", 60))))
    assert found["Which mode"].startswith("use single: one process")
    assert found["Distribute at all"].startswith("one process with all threads; do not distribute: ddp")
    assert "n = 3" in found["Measured"] and "horovod" not in found["Distribute at all"]


def test_ddp_that_is_faster_is_advised_with_its_interval():
    ways = (way("single", 100, device="cuda"), way("ddp", 180, device="cuda", noise=1), way("dp", 120, device="cuda"))
    found = said(Facts(ways))
    pair = answers.compared(ways, ways[1], ways[0]).found
    low, high = pair.low - 1, pair.high - 1
    assert found["Which mode"].startswith("use ddp")
    assert found["Distribute at all"] == "distribute: ddp on 2 devices"
    assert f"ddp is {100 * low:.1f}–{100 * high:.1f} % faster than single" in found["Measured"]


@pytest.mark.parametrize(("faster", "slower", "advised"), [
    ("ddp", "single", "single"), ("horovod", "ddp", "ddp"), ("dp", "ddp", "ddp"), ("zero1", "ddp", "ddp"),
    ("dp", "horovod", "horovod"),
])  # fmt: skip
def test_where_intervals_overlap_the_simpler_mode_is_advised(faster, slower, advised):
    ways = (way(slower, 100, noise=1), way(faster, 100.5))
    found = answers.choose(ways)
    assert found.best.label == faster and found.advised.label == advised
    text = said(Facts(ways))["Which mode"]
    assert f"use {advised}:" in text and f"{faster} is not shown to be faster" in text


def test_a_difference_that_is_too_small_to_matter_is_none():
    """Shown to exist, and within 2 %: the simpler of the two."""
    found = answers.choose((way("single", 100), way("ddp", 101)))
    assert found.pairs[0].found.verdict == "tie" and found.advised.label == "single"


def test_without_an_advantage_shown_nothing_is_distributed():
    text = said(Facts((way("single", 100, noise=1), way("ddp", 100.5))))["Distribute at all"]
    assert "do not distribute: ddp" in text and "is not shown to be faster" in text


def test_a_mode_with_another_update_is_never_advised():
    found = said(Facts((way("single", 100), way("ddp", 120), way("local", 300))))
    assert found["Which mode"].startswith("use ddp") and "local" not in found["Distribute at all"]
    assert "whether local is worth its speed" in found["Not known"]


def test_what_is_withheld_recommends_nothing_and_shows_what_was_measured():
    ways = (way("single", 100), way("ddp", 200, parts={COMPUTATION: 0.3, EXPOSED: 0.7}))
    found = said(Facts(ways, disturbed=True, withheld="the runs were disturbed"))
    assert found["No recommendation"] == "the runs were disturbed" and "no verdict" in found["Measured"]
    assert not {"Which mode", "Distribute at all", "What holds the step back"} & set(found)
    assert "use " not in found["Measured"] and "try" not in " ".join(found.values())


# --- what holds the step back ---------------------------------------------------------------------------------------


def tried(found: Way, **known) -> list[str]:
    """The first words of what is to be tried, in its order."""
    return [trial.words.split(":")[0] for trial in answers.trials(found, Facts((found,), **known))]


def test_exposed_communication_calls_for_compression_first():
    parts = {COMPUTATION: 0.5, EXPOSED: 0.4, DATA_WAIT: 0.1}
    assert tried(way("ddp", 100, parts=parts))[:2] == ["COMPRESSION=fp16", "more input workers"]
    lines = answers.step_lines(way("ddp", 100, parts=parts | {COMPUTATION: 0.3, EXPOSED: 0.6}), Facts())
    assert lines[1] == "ddp is held back by exposed communication" and "exposed communication 60.0 %" in lines[0]


def test_a_wait_for_data_calls_for_workers_first():
    found = way("ddp", 100, parts={COMPUTATION: 0.3, EXPOSED: 0.2, DATA_WAIT: 0.5}, workers=2)
    assert tried(found)[:2] == ["more input workers", "COMPRESSION=fp16"]
    trial = answers.trials(found, Facts())[0]
    assert trial.gain == pytest.approx(0.5) and "now 2 in all" in trial.words and "50.0 % [" in trial.words


def test_what_is_exposed_is_the_most_that_compression_can_gain():
    """As much as before is hidden, so half the bytes may save more than half of it."""
    (trial,) = answers.fewer_bytes(way("ddp", 100, parts={COMPUTATION: 0.6, EXPOSED: 0.4}), Facts())
    assert trial.gain == pytest.approx(0.4) and "predict" not in trial.words
    assert not answers.fewer_bytes(way("fsdp", 100, parts={COMPUTATION: 0.6, EXPOSED: 0.4}), Facts())  # has none
    done = way("ddp", 100, parts={COMPUTATION: 0.6, EXPOSED: 0.4}, compression="fp16")
    assert not answers.fewer_bytes(done, Facts())


def test_the_forecast_says_the_gain_of_compression_where_the_link_was_measured_here():
    """A link that was only given is another cluster's, and enters no line about what was measured."""
    found = way("ddp", 100, parts={COMPUTATION: 0.2, EXPOSED: 0.8})
    (here,) = answers.fewer_bytes(found, Facts((found,), profile=PROFILE, link=SLOW, own_link=MEASURED))
    (elsewhere,) = answers.fewer_bytes(found, Facts((found,), profile=PROFILE, link=SLOW))
    gain = answers.saved(PROFILE, found.config, 2, MEASURED)
    assert 0 < gain < 0.8 and here.gain == pytest.approx(gain) and f"predicts {100 * gain:.1f} %" in here.words
    assert elsewhere.gain == pytest.approx(0.8) and "predict" not in elsewhere.words


def test_ranks_that_are_not_alike_and_what_is_not_hidden():
    assert tried(way("ddp", 9, parts={COMPUTATION: 0.7, IMBALANCE: 0.3}))[0].startswith("equal devices")
    late = way("ddp", 9, parts={COMPUTATION: 0.5, EXPOSED: 0.5}, overlap=False)
    assert tried(late)[0] == "OVERLAP=1"


def test_of_the_distributed_modes_one_whose_communication_is_known_is_taken_apart():
    parts = {COMPUTATION: 0.9, EXPOSED: 0.1}
    ways = (way("single", 100), way("dp", 90), way("ddp", 80, parts=parts), way("horovod", 70, parts=parts))
    assert [each.label for each in answers.looked_into(Facts(ways))] == ["single", "ddp"]
    assert [each.label for each in answers.looked_into(Facts(ways[:2]))] == ["single", "dp"]


def test_computation_has_a_measurement_to_make_and_no_promised_gain():
    (trial,) = answers.trials(way("single", 100), Facts())
    assert trial.gain is None and "make sweep MODE=single" in trial.words


# --- devices that are not here --------------------------------------------------------------------------------------


def test_the_number_of_devices_at_which_the_efficiency_falls_below_80_percent():
    """Once communication is a quarter of what is computed, a step is 1.25 times as long."""
    assert cluster.below(lambda ranks: 1 / (1 + 0.01 * ranks)) == 26
    assert cluster.below(lambda ranks: 0.8) is None
    assert cluster.below(lambda ranks: 0.79 if ranks > 511 else 1.0) == 512


def test_the_80_percent_point_of_a_profile_is_that_of_its_forecast():
    found = said(Facts(profile=PROFILE, link=SLOW))["How far it scales"]
    (line,) = (line for line in found.splitlines() if line.startswith("predicted: ddp:"))
    number = int(line.split("from ")[1].split()[0])
    at = {n: cluster.result.forecast(PROFILE, RunConfig(mode="ddp"), n, SLOW).efficiency for n in (number - 1, number)}
    assert at[number] < 0.8 <= at[number - 1]
    assert "no interval of these, for the link is given" in found
    assert "no interval" not in said(Facts(profile=PROFILE, link=MEASURED))["How far it scales"]


def test_a_cluster_that_is_not_there_is_predicted_in_every_line():
    ways = (way("single", 100), way("ddp", 50))
    found = said(Facts(ways, profile=PROFILE, link=SLOW, nodes=8))
    lines = found["On 8 devices"].splitlines()
    assert all(line.startswith("predicted") for line in lines) and ": use ddp with COMPRESSION=fp16" in lines[0]
    assert "predict" not in found["Which mode"] + found["Distribute at all"] + found["What holds the step back"]
    assert "without it use ddp, which takes 1." in lines[-1]


@pytest.mark.parametrize(("longer", "advised"), [(1.06, "horovod"), (1.01, "ddp")])
def test_forecasts_share_one_profile_and_are_compared_at_the_same_end(longer, advised):
    """Intervals that overlap are no reason to call 6 % nothing: both steps move with the same profile."""
    horovod, ddp = (
        dataclasses.replace(each, step_s=step_s, low_s=0.8 * step_s, high_s=1.2 * step_s)
        for mode, step_s in (("horovod", 1.0), ("ddp", longer))
        for each in cluster.forecasts(Facts(profile=PROFILE, link=SLOW), 4)
        if (each.mode, each.config.compression) == (mode, "none")
    )
    assert cluster.advised([horovod, ddp]).mode == advised


def test_a_link_that_is_too_slow_is_not_distributed_over():
    facts = Facts(profile=PROFILE, link=Link(1.0, 1e-5, "a very slow link"), nodes=2, price=3.6, examples=1000)
    lines = (found := said(facts))["On 2 devices"].splitlines()
    assert ": use single: one process, one device" in lines[0] and "2 devices" in lines[0]
    assert lines[1] == "predicted: do not distribute: none is faster than one device"
    assert "predicted: single on one device" in found["Cost of an epoch"]


def test_one_device_that_does_as_much_as_many_is_advised():
    """Two devices that take twice as long for a step do what one does."""
    found = {
        (each.mode, each.config.compression): each for each in cluster.forecasts(Facts(profile=PROFILE, link=SLOW), 2)
    }
    one, two = found["single", "none"], found["ddp", "none"]
    as_much = dataclasses.replace(two, step_s=1.99 * one.step_s, low_s=None, high_s=None)
    assert as_much.throughput > one.throughput and cluster.advised([as_much, one]) is one
    assert cluster.advised([more := dataclasses.replace(as_much, step_s=1.9 * one.step_s), one]) is more


@pytest.mark.parametrize(("beta_s", "label"), [(1e-7, "ddp with COMPRESSION=fp16"), (0.0, "ddp")])
def test_half_the_bytes_are_advised_where_they_gain_and_full_precision_where_they_do_not(beta_s, label):
    found = cluster.forecasts(Facts(profile=PROFILE, link=Link(0.0, beta_s, "a link")), 4)
    found = [each for each in found if each.mode == "ddp"]
    assert cluster.way_of(cluster.advised(found).config).label == label


# --- cost, memory, what is not known --------------------------------------------------------------------------------


def test_the_cost_of_an_epoch_is_devices_times_hours_times_price():
    ways = (way("single", 100, device="cuda"), way("ddp", 180, num_devices=2, device="cuda"))
    known = Facts(ways, price=3.6, examples=1000)
    flat = [dataclasses.replace(each, throughputs=[each.throughputs[0]] * 3) for each in ways]
    assert answers.cost(flat[0], known)[0] == pytest.approx(3.6 * 1000 / 100 / 3600)
    assert answers.cost(flat[1], known) == pytest.approx((2 * 3.6 * 1000 / 180 / 3600,) * 3)
    lines = said(known)["Cost of an epoch"].splitlines()
    assert [line.split(":")[0] for line in lines] == ["single", "ddp"] and "on 2 GPUs" in lines[1]


def test_cpu_workers_of_one_machine_cost_one_machine():
    assert way("ddp", 100, num_devices=4).paid == 1 and way("ddp", 100, num_devices=4, device="cuda").paid == 4


def test_the_cost_on_a_cluster_is_predicted():
    found = said(Facts(profile=PROFILE, link=SLOW, nodes=4, price=3600.0, examples=8, per_example=4))[
        "Cost of an epoch"
    ]
    step_s = cluster.advised(cluster.forecasts(Facts(profile=PROFILE, link=SLOW), 4)).step_s
    assert found.startswith("predicted: ") and style.number(step_s) in found


def test_what_fits_is_told_of_each_mode():
    found = said(Facts(batches={"single": 512, "ddp": 0}, batches_said=("of 16 GiB",)))["Largest batch per device"]
    assert found.splitlines() == ["predicted: single: 512 images", "predicted: ddp: not even one", "of 16 GiB"]


def test_what_could_not_be_known_is_a_list():
    found = said(Facts((way("ddp", 100),), price=1.0, unknown=("why",)))["Not known"].splitlines()
    assert found[0] == "why" and len(found) >= 6
    for words in ("whether to distribute", "exposed communication", "largest batch", "no profile", "EXAMPLES"):
        assert any(words in line for line in found), words
    assert "no link" in said(Facts(profile=PROFILE))["Not known"]
