"""`bench predict step`: what it takes, what it refuses, and what it makes of the spread of steps and of the link."""

import dataclasses
import json

import pytest

from bench import formulas
from bench.__main__ import main
from bench.config.options import RunConfig
from bench.predict.step import profile as profiles
from bench.predict.step import result
from bench.predict.step.engines import ENGINES
from bench.predict.step.fit import ENOUGH, Fit, Point, weighted_quantiles
from bench.predict.step.link import Link
from tests import networks, records
from tests import profiles as made_up
from tests.profiles import PROFILE
from tests.records import in_samples
from tests.shown import in_one_line

LINK = "--link=100mbit,1ms"
MEASURED = Link(1e-3, 1e-8, "", "gloo", (5e-4, 2e-3), (9e-9, 1.1e-8))


def test_a_profile_is_read_from_a_record_and_scaled_to_its_timed_steps(tmp_path):
    """The hooks' steps say where in backward a gradient is ready; the timed steps how long backward takes."""
    made = records.record("single", num_devices=1)
    steps = made.samples[0].step_time_s
    profile = profiles.profile_of(profiles.record_at(str(made_up.record(tmp_path / "run"))), "run")
    middle = formulas.percentile(steps, 50)
    assert profile.backward_s == pytest.approx(0.55 * middle) and profile.step_s == pytest.approx(middle)
    assert [tensor.ready_s for tensor in profile.tensors] == pytest.approx([profile.backward_s, profile.backward_s / 2])
    assert profile.tensors[1].needed_s == pytest.approx(profile.forward_s / 2) and profile.nbytes == 20_000_000
    assert profile.factors == pytest.approx(sorted(step / middle for step in steps)) and profile.units == 32


def test_the_step_on_one_device_is_the_profiles_mean():
    factors = (0.9, 1.0, 1.4)
    found = result.forecast(dataclasses.replace(PROFILE, factors=factors), RunConfig(mode="ddp"), 1, MEASURED)
    assert found.step_s == pytest.approx(PROFILE.step_s * 1.1) and found.efficiency == pytest.approx(1.0)
    assert found.terms[result.SLOWEST] == 0.0 and min(found.terms.values()) >= 0.0


def test_many_ranks_wait_for_the_slowest_of_them():
    """Without a link's cost the mean step grows from that of the steps to the longest of them."""
    profile = dataclasses.replace(PROFILE, factors=(1.0, 2.0), optimizer_s=0.0)
    free = Link(0.0, 0.0, "")
    found = [result.forecast(profile, RunConfig(mode="ddp"), ranks, free) for ranks in (1, 2, 1000)]
    assert [each.step_s / profile.step_s for each in found] == pytest.approx([1.5, 1.75, 2.0])
    assert found[1].terms[result.SLOWEST] == pytest.approx(0.25 * profile.step_s)
    assert found[1].exposed_s == pytest.approx(0.0)


@pytest.mark.parametrize("mode", ["ddp", "horovod", "zero1", "fsdp"])
def test_the_terms_add_up_and_the_interval_holds_the_step(mode):
    profile = dataclasses.replace(PROFILE, factors=(0.95, 1.0, 1.02, 1.2))
    found = result.forecast(profile, RunConfig(mode=mode, num_devices=2), 4, MEASURED)
    assert sum(found.terms.values()) == pytest.approx(found.step_s)
    assert found.low_s < found.step_s < found.high_s
    alone = result.forecast(PROFILE, RunConfig(mode=mode, num_devices=2), 4, Link(1e-3, 1e-8, ""))
    assert alone.low_s is None and "[" not in result.step_cell(alone)


TCP = Link(1e-5, 1e-8, "", "nccl", reached=(0.25, 1.0))


def test_a_fit_finds_the_rate_of_a_link_and_predicts_more_devices_than_it_was_given():
    profile = dataclasses.replace(PROFILE, backward_s=0.1)  # hides little
    alone = Point(1, (profile.mean_step_s,))
    link = dataclasses.replace(TCP, beta_s=2 * TCP.beta_s)
    two, four, sixteen = (result.forecast(profile, RunConfig(mode="ddp"), ranks, link).step_s for ranks in (2, 4, 16))
    found = Fit(profile, RunConfig(mode="ddp"), TCP, [alone, Point(2, (two,)), Point(4, (four,))])
    said = result.forecast(profile, RunConfig(mode="ddp"), 16, TCP, found)
    assert said.low_s < sixteen < said.high_s and said.step_s == pytest.approx(sixteen, rel=0.03)
    assert sum(said.terms.values()) == pytest.approx(said.step_s)
    unfitted = result.forecast(profile, RunConfig(mode="ddp"), 16, TCP).step_s
    assert abs(said.step_s - sixteen) < abs(unfitted - sixteen) / 3


def test_points_of_one_node_tell_nothing_of_the_link_between_nodes():
    """Its range remains, and on several nodes the interval is wider."""
    nodes = TCP.with_inside(8, Link(1e-6, 1e-10, "", "nccl"))
    points = [Point(ranks, (PROFILE.mean_step_s * (1 + 0.01 * ranks),)) for ranks in (1, 2, 4, 8)]
    found = Fit(PROFILE, RunConfig(mode="ddp"), nodes, points)
    rates = [(draw.between, draw.weight) for draw in found.draws]
    assert weighted_quantiles(rates, (0.05, 0.5, 0.95)) == pytest.approx([0.27, 0.5, 0.93], abs=0.06)
    assert [found.is_fitted(name) for name in ("inside", "between", "in_node", "nodes")] == [True, False, True, False]
    (low, middle, high), (low_16, middle_16, high_16) = (found.step(RunConfig(mode="ddp"), n) for n in (8, 16))
    assert low < points[-1].step_s < high and (high_16 - low_16) / middle_16 > 1.2 * (high - low) / middle


def test_runs_that_differ_widen_the_interval_and_points_that_nothing_explains_still_have_one():
    alone = Point(1, (PROFILE.mean_step_s,))
    one, other = (Fit(PROFILE, RunConfig(mode="ddp"), TCP, [alone, Point(2, tuple(PROFILE.mean_step_s * each
                                                                               for each in steps))])
                  for steps in ((1.1, 1.101, 1.099, 1.1), (1.02, 1.18, 1.0, 1.2)))  # fmt: skip
    widths = [high - low for low, _, high in (fit.step(fit.config, 4) for fit in (one, other))]
    assert widths[0] < widths[1] / 2
    faster = Fit(PROFILE, RunConfig(mode="ddp"), TCP, [alone, Point(2, (PROFILE.mean_step_s / 2,))])
    weights = [draw.weight for draw in faster.draws]
    assert sum(weights) ** 2 / sum(each * each for each in weights) >= ENOUGH


def rows_of(run, capsys, *words: str) -> tuple[list[list[str]], str]:
    """The rows of the table of `bench predict step`: mode, devices, step and the rest; and all that it prints."""
    assert main(["predict", "step", str(run), *words]) == 0
    said = capsys.readouterr().out
    assert "predicted" in said
    return [cells for line in said.splitlines() if (cells := line.split()) and cells[0] in ENGINES], in_one_line(said)


def test_a_row_for_each_mode_and_number_of_devices_and_nothing_is_written(tmp_path, capsys):
    run = made_up.record(tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    rows, _ = rows_of(run, capsys, "--devices=2,16", LINK, "--explain", "--modes=ddp,fsdp")
    assert [row[:2] for row in rows[:4]] == [["ddp", "2"], ["ddp", "16"], ["fsdp", "2"], ["fsdp", "16"]]
    assert sorted(tmp_path.rglob("*")) == before


def test_nodes_of_several_devices_have_a_link_inside_and_share_the_other(tmp_path, capsys):
    run = made_up.record(tmp_path / "run", device="cuda")
    words = ("--devices=8,16", LINK, "--modes=ddp")
    alone, shared = (
        rows_of(run, capsys, *words, *more)[0] for more in ((), ("--per-node=8", "--link-inside=1200gbit,4us"))
    )
    (alone_8, alone_16), (shared_8, shared_16) = ([float(row[2]) for row in rows] for rows in (alone, shared))
    assert shared_8 < alone_8 and shared_16 == pytest.approx(alone_16, rel=0.05)


@pytest.mark.parametrize(("threads", "known"), [(1, True), (2, False)])
def test_a_link_and_the_peak_of_mfu_are_taken_from_what_bench_network_left(threads, known, tmp_path, capsys):
    """An example of 1 TFLOP, 32 of them in a step; the slowest device multiplies at 1.07 TFLOP/s with a thread."""
    (folder := tmp_path / "network-1" / "gloo").mkdir(parents=True)
    (folder / "network.json").write_text(json.dumps(networks.data(backend="gloo", gathers=True, noise=0.0)))
    change = in_samples(lambda part: part["facts"].update(flops_per_example=1e12))
    run = made_up.record(tmp_path / "run", change, threads=threads, precision="fp32")
    (row,), said = rows_of(run, capsys, f"--network={tmp_path}", "--modes=ddp", "--devices=2")
    assert f"alpha {1e6 * networks.ALPHA:.3g}" in said and ("measured peak" in said) == known
    if known:
        tflops, mfu, _ = row[-3:]
        assert float(mfu) == pytest.approx(100 * float(tflops) / 1.0737, rel=0.01)
    else:
        assert "no matrix products in fp32" in said
    on_gpu = made_up.record(tmp_path / "gpu", device="cuda")
    assert main(["predict", "step", str(on_gpu), f"--network={tmp_path}"]) == 2
    assert "nccl" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "value"), [
    ({"profile": False}, "profile"),
    ({"mode": "ddp", "num_devices": 2, "profile": False}, "2 devices"),
    ({"failed": "killed", "profile": False}, "failed"),
    ({"change": lambda data: data["samples"][0]["facts"].update(trained_parameters=1)}, "trains"),
    ({"change": lambda data: data["samples"][0]["profile"]["parameters"][0].update(dtype="bfloat16")}, "bfloat16"),
    ({"change": lambda data: data["samples"][0]["profile"]["parameters"][0]["ready_s"].pop()}, "one run"),
])  # fmt: skip
def test_a_record_of_no_use_is_refused_in_one_line(options, value, tmp_path, capsys):
    """Options that make no sense are in tests/unit/cli/test_refusals.py."""
    assert main(["predict", "step", str(made_up.record(tmp_path / "run", **options)), LINK]) == 2
    error = capsys.readouterr().err
    assert value in error and error.count("\n") == 1
