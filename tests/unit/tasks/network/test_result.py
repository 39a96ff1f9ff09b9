"""alpha, beta and bandwidths of made-up times, of which the right ones are known."""

import random
from pathlib import Path

import pytest

from bench import formulas
from bench.tasks.network import result
from bench.tasks.network.result import Series, series_of
from tests import networks
from tests.networks import ALPHA, BETA
from tests.shown import printed


def series(name: str, **made) -> Series:
    """The series of an operation."""
    (found,) = [s for s in series_of([networks.record(**made)]) if s.operation.name == name]
    return found


@pytest.mark.parametrize("name", ["ping_pong", "all_reduce"])
@pytest.mark.parametrize("ranks", [2, 5])
def test_alpha_and_beta_of_exact_times_are_those_that_made_them(name, ranks):
    """Of a message there and back as of a ring: what is fitted are the links, and not the operation."""
    fit = series(name, ranks=ranks, noise=0.0).fit
    assert fit.alpha == pytest.approx((ALPHA,) * 3) and fit.beta == pytest.approx((BETA,) * 3)
    assert abs(fit.off) < 1e-9


def test_the_intervals_cover_the_truth_as_often_as_they_say():
    """Ten rounds: the exact interval of a median has 97.9 %. Noise of 10 % on sizes over five decades."""
    trials, missed = 200, {"alpha": 0, "beta": 0}
    for seed in range(trials):
        fit = series("all_reduce", ranks=3, rounds=10, noise=0.1, seed=seed).fit
        for name, (_, low, high), true in (("alpha", fit.alpha, ALPHA), ("beta", fit.beta, BETA)):
            missed[name] += not low <= true <= high
    assert all(count / trials < 0.05 for count in missed.values()), missed


def test_the_interval_of_a_median_covers_it_as_often_as_it_says():
    draw = random.Random(0)
    within = 0
    for _ in range(2000):
        _, low, high = formulas.median_interval([draw.expovariate(1.0) for _ in range(10)], 0.95)
        within += low <= 0.6931 <= high
    assert 0.965 < within / 2000 < 0.99  # 97.9 %, by the binomial


def test_bandwidths_are_of_the_median_time_and_turn_its_interval_round():
    found = series("all_reduce", ranks=4)
    times = found.operation.times[-1]
    (middle, low, high), (bus, bus_low, bus_high) = found.bandwidths(times)
    seconds = sorted(times.seconds)
    assert middle == pytest.approx(times.nbytes / ((seconds[4] + seconds[5]) / 2))
    assert (low, high) == pytest.approx((times.nbytes / seconds[-2], times.nbytes / seconds[1]))
    assert (bus, bus_low, bus_high) == pytest.approx((1.5 * middle, 1.5 * low, 1.5 * high))  # 2 (4 - 1) / 4


def test_a_message_one_way_takes_half_of_there_and_back():
    found = series("ping_pong", noise=0.0)
    assert found.operation.times[0].seconds == pytest.approx([ALPHA + BETA * 4096] * 10)
    assert "latency 83.3 [83.3 to 83.3] µs, half a round trip of 4 KiB" in result.speed_line(found)


def test_times_that_are_no_line_are_said_to_be_none():
    made = networks.data(noise=0.0)
    for size in made["operations"][1]["sizes"][4:]:  # as where a cache ends
        size["seconds"] = [[4 * s for s in column] for column in size["seconds"]]
    record = networks.checked(made, Path("made-up"))
    assert "not on a straight line" in result.fit_line(series_of([record])[1])


def test_few_rounds_have_no_interval_and_two_sizes_no_line():
    found = networks.record(rounds=5, sizes="4KiB,16KiB")
    assert "too few for an interval of 95 %" in " ".join(result.provenance_lines([found]))
    assert all(s.fit is None and s.seconds(s.operation.times[0])[1:] == (None, None) for s in series_of([found]))


def test_what_is_said_names_every_backend_the_units_and_what_was_left_out():
    found = networks.both(left_out=(2**26, 2**28))
    said = "\n".join(result.answer(found))
    for words in ("Gloo, point to point, rank 0 to rank 1", "Gloo, all-reduce of 2 ranks", "Horovod over Gloo",
                  "s per byte", "no time for 64 MiB, 256 MiB", "MAX_MINUTES"):  # fmt: skip
        assert words in said, words
    tables = printed(*result.grids(found))
    assert (
        "algorithm bandwidth" in tables and "bus bandwidth" in tables and "16 MiB" in tables and "64 MiB" not in tables
    )
    assert result.repeat(found) == (
        "make network GPUS=2 DEVICE=cpu SIZES=4KiB-256MiB REPEATS=10 MAX_MINUTES=5 BACKENDS=gloo,horovod"
    )


@pytest.mark.parametrize(("made", "where"), [
    ({}, "2 processes of one machine"),
    ({"ranks": 4, "nodes": ("n1", "n2")}, "4 processes, 2 nodes × 2 devices (n1, n2)"),
    ({"ranks": 4, "nodes": ("n1", "n2"), "label": "2 namespaces of one machine, links limited to 100 Mbit/s"},
     "4 processes, 2 nodes × 2 devices (n1, n2), 2 namespaces of one machine, links limited to 100 Mbit/s"),
])  # fmt: skip
def test_between_what_the_messages_went_is_said_first(made, where):
    assert result.provenance_lines([networks.record(**made)])[0] == where


def test_a_disturbed_measurement_is_said_to_be_one():
    assert result.disturbed([networks.record()]) == []
    assert (
        "Gloo was disturbed: other processes took 40 % of the CPU" in result.disturbed([networks.record(others=0.4)])[0]
    )
