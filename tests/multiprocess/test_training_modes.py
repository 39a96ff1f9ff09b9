"""Batch norm over all ranks, accumulated gradients and a scaled loss: real processes over real Gloo and Horovod.

Everything of one mode and one number of ranks comes out of one launch of training_modes.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.config.options import RunConfig
from bench.modes import load_mode
from bench.process import tree
from tests.forked_programs import start_ranks
from tests.meeting import Meeting
from tests.multiprocess import training_modes
from tests.multiprocess.training_modes import ACCUMULATING, BAD_STEP, PASSES, SCALING, STEPS, asked, text
from tests.runs import ENGINE_PREFIXES, ROOT, needs_horovod

LAUNCH = {
    "ddp": ["torch.distributed.run", "--standalone", "--nproc-per-node", "{}"],
    "horovod": ["horovod.runner.launch", "--gloo", "-np", "{}", "-H", "localhost:{}", sys.executable],
}
LIMIT_S = 150
EXACT = 1e-12  # float64: what another order of summing leaves
FP16 = 1e-3  # what rounding gradients to 11 bits leaves after STEPS steps


# Three ranks: a mean of three is no power of two, and a sum over them depends on its order.
ENGINES = [pytest.param((mode, 3), id=mode, marks=needs_horovod if mode == "horovod" else ()) for mode in LAUNCH]


@pytest.fixture(scope="module")
def results(tmp_path_factory, forked_programs):
    """``results((mode, ranks))``: what training_modes.py found, launched when it is first asked for."""
    launch, done = by_forks if forked_programs else by_launcher, {}

    def get(engine):
        if engine not in done:
            path = tmp_path_factory.mktemp(engine[0]) / "result.json"
            environment = {k: v for k, v in os.environ.items() if not k.startswith(ENGINE_PREFIXES)}
            launch(*engine, path, environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)})
            done[engine] = json.loads(path.read_text())
        return done[engine]

    return get


def by_forks(mode: str, ranks: int, path: Path, environment: dict) -> None:
    """Ranks that have torch already."""
    log, meeting = path.with_name("log"), Meeting(ranks) if mode == "horovod" else None
    environment |= {"BENCH_INIT_METHOD": f"file://{path.with_name('meet')}"}
    call = start_ranks(training_modes.__name__, [mode, str(ranks), str(path)], ranks, environment, log, meeting)
    try:
        assert call.wait(LIMIT_S) == 0, log.read_text()[-3000:]
    finally:
        tree.terminate(tree.with_descendants(call.pid) if call.poll() is None else [])
        if meeting:
            meeting.close()


def by_launcher(mode: str, ranks: int, path: Path, environment: dict) -> None:
    """Where a fork is not safe."""
    command = [sys.executable, "-m", *(word.format(ranks) for word in LAUNCH[mode])]
    script = [training_modes.__file__, mode, str(ranks), str(path)]
    ran = subprocess.run([*command, *script], env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert ran.returncode == 0, ran.stderr[-3000:]


# --- NORM=sync ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_synced_norms_are_those_of_one_process_on_the_joined_batch(results, engine):
    found = results(engine)["norms"]["sync"]
    assert set(found["apart"]) == {"outputs", "gradients", "buffers", "weights", "evaluation"}
    assert max(found["apart"].values()) <= EXACT, found["apart"]


@pytest.mark.parametrize("engine", ENGINES)
def test_each_ranks_own_norms_are_not(results, engine):
    """The ranks' images differ in mean and deviation, so that the test before this one can fail."""
    assert min(results(engine)["norms"]["batch"]["apart"].values()) > 1e-2


@pytest.mark.parametrize("engine", ENGINES)
def test_synced_norms_keep_the_models_names_and_say_what_they_are(results, engine):
    own, synced = results(engine)["norms"]["batch"], results(engine)["norms"]["sync"]
    assert synced["keys"] == synced["keys alone"] == own["keys"]
    assert (own["class"], synced["class"]) == ("BatchNorm2d", "ReducedBatchNorm2d")
    assert own["label"] == "" and "ReducedBatchNorm2d, this bench's own" in synced["label"]


# --- EMA and SWA ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_averages_are_those_of_one_process_on_the_joined_batch(results, engine):
    """Weights and batch norm's statistics; no rank has others."""
    found = results(engine)["averaged"]
    assert max(found["apart"].values()) <= EXACT and min(found["moved"].values()) > 1e-2, found
    assert all(found["replicas equal"].values())


# --- ACCUMULATE -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_accumulated_passes_are_one_large_batch(results, engine):
    """In one pass and in PASSES, with every way to reduce, as one process on the whole batch."""
    found = results(engine)["passes"]
    assert list(found) == [text(options) for options in ACCUMULATING[engine[0]]]
    for options, by_passes in found.items():
        for passes, run in by_passes.items():
            assert run["apart"] <= (FP16 if "fp16" in options else EXACT), (options, passes)
            assert run["moved"] > 10 * FP16, (options, passes)
            assert run["replicas equal"] == ("sync=0" not in options), (options, passes)


@pytest.mark.parametrize("engine", ENGINES)
def test_accumulated_passes_are_exchanged_once(results, engine):
    """DDP reduces the one bucket of this network, Horovod each of its gradients or one group of them: once a step."""
    for options, by_passes in results(engine)["passes"].items():
        for passes, run in by_passes.items():
            once = run["parameters"] if engine[0] == "horovod" and "overlap=0" not in options else 1
            assert run["exchanges"] == [0 if "sync=0" in options else once] * STEPS, (options, passes)


def test_a_static_graph_is_left_out_where_the_first_pass_exchanges_nothing(results):
    """DDP fails there; and the record says so."""
    (by_passes,) = (v for k, v in results(("ddp", 3))["passes"].items() if "static_graph" in k)
    assert {passes: run["facts"]["static_graph"] for passes, run in by_passes.items()} == {
        "1": True,
        str(PASSES): False,
    }


def test_what_is_recorded_of_ddps_buffers(results):
    passes = results(("ddp", 3))["passes"]
    said = {(options, n): run["facts"]["buffers"] for options, runs in passes.items() for n, run in runs.items()}
    assert said["plain", "1"] == "rank 0's, sent every forward"
    assert said["plain", str(PASSES)] == "rank 0's, sent every step"
    assert said["sync=0", str(PASSES)] == "each rank's own"


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("name", "devices"), [("single", 1), ("dp", 2), ("dp", 3)])
def test_one_process_accumulates_as_well(name, devices, fused):
    mode = load_mode(name)(RunConfig(mode=name, num_devices=devices, device="cpu", threads=devices))
    run = training_modes.train_passes(asked(mode, accumulate=PASSES, fused=fused))
    assert run["apart"] <= EXACT and run["moved"] > 10 * FP16


# --- PRECISION=fp16 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_a_gradient_that_is_infinite_on_one_rank_is_skipped_by_all(results, engine):
    """The scaler sees the reduced gradients, so all ranks leave the step out and halve the scale."""
    found = results(engine)["scaled"]
    assert list(found) == [text(options) for options in SCALING]
    for options, run in found.items():
        assert run["moved"] == [step != BAD_STEP for step in range(STEPS)], options
        assert run["scales"] == [256.0] + [128.0] * (STEPS - 1), options
        assert run["ranks agree"] and run["replicas equal"], options


@pytest.mark.parametrize("engine", ENGINES)
def test_scaled_and_clipped_steps_are_those_of_one_process(results, engine):
    for options, run in results(engine)["scaled"].items():
        assert run["apart"] <= (FP16 if "fp16" in options else EXACT), options


# --- Adam under Horovod ---------------------------------------------------------------------------------------------


@needs_horovod
def test_broadcasting_a_fresh_adams_state_breaks_it(results):
    """The trap that bench/modes/horovod.py stays out of: `broadcast_optimizer_state` takes a hidden step of its own."""
    apart = results(("horovod", 3))["adam"]
    assert apart["plain"] <= 1e-6
    assert apart["broadcast"] > 1e-3
