"""Options of an engine that change the update, and switches that are unfair on purpose: real runs."""

import numpy as np
import pytest

from tests.runs import NARROW, needs_horovod

# A ResNet, without a norm: compression is seen where weights move (test_modes.py). PowerSGD begins at the third step.
COMMON = NARROW | {"norm": "none", "warmup": 1, "steps": 3, "seed": 3, "threads": 2, "gpus": 2, "snapshots": "4"}
DDP, HOROVOD = {"mode": "ddp"}, {"mode": "horovod"}
PLANS = {
    "ddp": {
        "plain": DDP,
        "fp16": DDP | {"compression": "fp16"},
        "bf16": DDP | {"compression": "bf16"},
        "powersgd": DDP | {"compression": "powersgd"},
        "no sync": DDP | {"tuned": 1, "batch": 6, "sync": 0},
        "unfair": DDP | {"step_barrier": 1, "item_sync": 1},
    },
    "horovod": {
        "fp16": HOROVOD | {"compression": "fp16"},
        "no sync": HOROVOD | {"batch": 6, "sync": 0},
    },
}  # fmt: skip
EITHER = ["ddp", pytest.param("horovod", marks=needs_horovod)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ranks):
    """``runs(mode, name)``: a run of a mode's plan, made when it is first asked for."""
    done = {}

    def get(mode, name):
        if (mode, name) not in done:
            done[mode, name] = ranks.run(tmp_path_factory.mktemp(mode), **COMMON | PLANS[mode][name])
        assert done[mode, name].code == 0, done[mode, name].stderr
        return done[mode, name]

    return get


@pytest.fixture(scope="module")
def plain(runs):
    """A plain run of two DDP ranks."""
    return runs("ddp", "plain")


def weights(result) -> np.ndarray:
    """All parameters of rank 0 after the last step."""
    saved = np.load(result.run_dir / "rank0-step4.npz")
    return np.concatenate([saved[name].ravel() for name in sorted(saved)])


def facts(result) -> list[dict]:
    """What each rank recorded of itself."""
    return [part["facts"] for part in result.record["samples"]]


@pytest.mark.parametrize(
    ("mode", "compression", "least", "most"),
    [
        ("ddp", "fp16", 1e-8, 1e-3),
        ("ddp", "bf16", 1e-7, 1e-2),
        ("ddp", "powersgd", 1e-5, 1.0),
        pytest.param("horovod", "fp16", 1e-8, 1e-3, marks=needs_horovod),
    ],
)
def test_compression_is_lossy_recorded_and_keeps_replicas_equal(runs, plain, mode, compression, least, most):
    result = runs(mode, compression)
    apart = np.abs(weights(result) - weights(plain)).max()
    assert least < apart < most
    assert {f["compression"] for f in facts(result)} == {compression}
    assert len({part["final_weights_sha256"] for part in result.record["samples"]}) == 1


@pytest.mark.parametrize("mode", EITHER)
def test_without_sync_nothing_is_exchanged(runs, plain, mode):
    result = runs(mode, "no sync")
    assert np.abs(weights(result) - weights(plain)).max() > 1e-4
    assert len({part["final_weights_sha256"] for part in result.record["samples"]}) == 2  # the replicas drift apart
    assert {f["gradient"] for f in facts(result)} == {"each process its own"}


def test_the_unfair_switches_are_felt_and_recorded(runs):
    result = runs("ddp", "unfair")
    assert all(f["step_barrier"] and f["item_sync"] for f in facts(result))


def test_simulated_storage_is_waited_for(tmp_path, ranks):
    result = ranks.run(tmp_path, mode="single", gpus=1, storage_ms=5)
    assert result.code == 0, result.stderr
    assert min(result.record["samples"][0]["data_wait_s"]) >= 0.005 * 6  # SMALL's six images a step


def test_phases_fill_the_step(plain):
    for part in plain.record["samples"]:
        phases = part["phase_time_s"]
        assert list(phases) == ["forward", "backward", "synchronize", "optimizer"]
        steps = part["step_time_s"]
        inside = [sum(times) for times in zip(part["data_wait_s"], *phases.values(), strict=True)]
        shares = [phases / step for phases, step in zip(inside, steps, strict=True)]
        assert 0.5 < max(shares) <= 1  # a single step may have had no core between its phases


@needs_horovod
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (DDP | {"fusion_mb": 1}, ["FUSION_MB", "MODE=horovod, not of ddp"]),
        (HOROVOD | {"compression": "powersgd"}, ["MODE=horovod has no COMPRESSION=powersgd"]),
        (DDP | {"overlap": 0, "compression": "fp16"}, ["OVERLAP=0", "COMPRESSION=fp16"]),
        ({"mode": "dp", "sync": 0}, ["INJECT=no-exchange", "MODE=ddp and horovod and zero1 and local, not of dp"]),
    ],
    ids=lambda o: str(o)[:30],
)
def test_an_option_that_cannot_be_had_is_one_clear_line(tmp_path, ranks, options, says):
    refused(ranks.run(tmp_path, gpus=2, **options), says)


def refused(result, words: list[str]) -> None:
    """Exit code 2, and one line with these words."""
    assert result.code == 2 and result.stderr.count("\n") == 1, result.stderr
    assert all(word in result.last_error_line for word in words), result.stderr
