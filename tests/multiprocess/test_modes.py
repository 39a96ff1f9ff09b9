"""All modes compute the same update: real processes over real Gloo and real Horovod, compared with one process."""

import argparse
import re
import socket
import sys
from unittest import mock

import numpy as np
import pytest

from bench.config.command_line import add_arguments, from_arguments
from bench.launch.launcher import launch, resolve_here
from bench.record.read import load
from tests.runs import SMALL, SMOOTH, flags, needs_horovod, needs_mpi, run

GLOBAL_BATCH = 12
STEPS = 5  # 1 of warm-up and 4 timed
# Without a norm, every weight of a ResNet moves in so few steps at 8 pixels; of smaller networks whole layers do not.
COMMON = SMOOTH | {
    "norm": "none", "warmup": 1, "steps": STEPS - 1, "snapshots": f"1,{STEPS}", "seed": 3, "threads": 2, "lr": 0.05,
}  # fmt: skip

# Float32 sums in another order differ by some 1e-8 here, and the network is smooth. So each tensor must agree to a
# thousandth of its way and each weight to its last bits. A gradient that is summed instead of averaged, or not
# exchanged, is off by a half or more.
BOUND_OF_WAY = 1e-3
LAST_BITS = 2e-7  # of a weight below 1: two or three
BOUND = 1e-5
APART_AT_MOST = 1e-3  # of all weights, under Adam

# Adam divides a gradient by its own size, so a gradient that is nothing but rounding error moves its weight by a full
# LR one way or the other. Few are: all but one weight in a thousand must agree, and so must the mean.
ADAM = {"optimizer": "adam", "lr": 1e-3}
ADAM_MEAN_BOUND = 1e-7

# Batch norms are gathered by themselves, in float32. bf16 has no instructions on every CPU.
FSDP_BF16 = {"mode": "fsdp", "gpus": 2, "norm": "batch", "precision": "bf16", "allow_slow": 1, "profile": 1}
BF16_APART = 0.5  # of the way: two roads of rounding, through batch norms of six images; a sum for a mean is off by one

ROWS = {
    "ddp x2": {"mode": "ddp", "gpus": 2, "launcher": "torchrun"},
    "ddp x2, torchrun at a tcp address": {"mode": "ddp", "gpus": 2, "launcher": "torchrun", "dist_url": "tcp"},
    "ddp x2, spawn at a file, tuned, loader workers": {
        "mode": "ddp", "gpus": 2, "launcher": "spawn", "dist_url": "file", "tuned": 1, "workers": 2,
    },
    "horovod x2, tuned, fusion, profiled": {"mode": "horovod", "gpus": 2, "tuned": 1, "fusion_mb": 1, "profile": 1},
    "horovod x2 by mpirun, tuned, profiled": {
        "mode": "horovod", "gpus": 2, "launcher": "mpirun", "tuned": 1, "profile": 1,
    },
    "dp x2": {"mode": "dp", "gpus": 2},
    "ddp x2, spawn at a tcp address": {"mode": "ddp", "gpus": 2, "launcher": "spawn", "dist_url": "tcp"},
}  # fmt: skip
# Others show the same: the address by torchrun and the launcher with a file. Three ranks of Horovod, each of which
# takes a core while it waits, are compared with one process in test_training_modes.py.
WIDE = (
    "ddp x2, spawn at a tcp address", "zero1 x3, views, no overlap", "fsdp x2, weights kept, prefetched", "zero1",
    "fsdp", "horovod x3",
)  # fmt: skip

# By copies of a process that has torch: how fresh ones of torchrun begin and end is looked at in the first row, how
# those of spawn do in test_faults.py.
COPIED = ("ddp x2, torchrun at a tcp address", "ddp x2, spawn at a file, tuned, loader workers")

# What changes the speed and not the update, and another number of threads in one process. They share processes
# (several_runs.py): what a launch itself gives and leaves is looked at in the rows above.
SHARED = {
    "dp x4": {"mode": "dp", "gpus": 4},
    "ddp x3": {"mode": "ddp", "gpus": 3},
    "ddp x2, reductions after backward": {"mode": "ddp", "gpus": 2, "overlap": 0, "bucket_cap_mb": 1},
    "ddp x2, small buckets, views": {"mode": "ddp", "gpus": 2, "bucket_cap_mb": 1, "gradient_as_bucket_view": 1},
    "horovod x3": {"mode": "horovod", "gpus": 3},
    "horovod x2, reductions after backward": {"mode": "horovod", "gpus": 2, "overlap": 0},
    "zero1 x2": {"mode": "zero1", "gpus": 2},
    "zero1 x3, views, no overlap": {"mode": "zero1", "gpus": 3, "gradient_as_bucket_view": 1, "overlap": 0},
    "fsdp x2, profiled": {"mode": "fsdp", "gpus": 2, "profile": 1},
    "fsdp x3": {"mode": "fsdp", "gpus": 3},  # no tensor divides by three
    "fsdp x2, weights kept, prefetched": {"mode": "fsdp", "gpus": 2, "reshard": 0, "prefetch": 1},
}  # fmt: skip
REFERENCES = {
    "single": {"mode": "single", "gpus": 1},
    "single, adam": {"mode": "single", "gpus": 1} | ADAM,
    "dp, adam": {"mode": "dp", "gpus": 2} | ADAM,
    "ddp, adam": {"mode": "ddp", "gpus": 2} | ADAM,
    "horovod, adam": {"mode": "horovod", "gpus": 2} | ADAM,
    "zero1, adam": {"mode": "zero1", "gpus": 2} | ADAM,
    "fsdp, adam": {"mode": "fsdp", "gpus": 2} | ADAM,
    "fsdp, bf16": FSDP_BF16,
    "fsdp, bf16, gathered in it": FSDP_BF16 | {"param_dtype": "bf16"},
    "fsdp, bf16, gathered in it, reduced in fp32": FSDP_BF16 | {"param_dtype": "bf16", "reduce_dtype": "fp32"},
    "local": {"mode": "local", "gpus": 2, "local_steps": 2, "channels_last": 1},
    "local, averaged every step": {"mode": "local", "gpus": 2, "local_steps": 1, "channels_last": 1},
    "independent": {"mode": "independent", "gpus": 2},
}
# Variables of another run, which a shell may hold: no launch takes a rank or an address from them.
LEFT_OVER = {"RANK": "3", "LOCAL_RANK": "3", "MASTER_PORT": "1", "HOROVOD_RANK": "5", "HOROVOD_LOCAL_RANK": "5",
             "OMPI_COMM_WORLD_RANK": "7", "OMPI_MCA_ess_base_vpid": "7"}  # fmt: skip
QUICK = ("dp x4", "ddp x2, small buckets, views", "horovod x2, reductions after backward")


def row(name: str):
    """A row as a parameter; Horovod's are skipped where it is not installed."""
    marks = [needs_mpi if "mpirun" in name else needs_horovod] if "horovod" in name else []
    marks += [pytest.mark.quick] * (name in QUICK) + [pytest.mark.wide] * (name in WIDE)
    return pytest.param(name, id=name, marks=marks)


EVERY_ROW = [row(name) for name in (ROWS | SHARED)]
LAUNCHED = [row(name) for name in ROWS]


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, ranks, forked_programs):
    """``trained(name)``: the finished run of a row, made when it is first asked for."""
    done = {}
    python = {name: forked_programs.python for name in COPIED if forked_programs}

    def get(name: str):
        if name not in done:
            out = tmp_path_factory.mktemp("run") / "a #folder? of 100%"  # a path is no web address
            config = COMMON | (ROWS | SHARED | REFERENCES)[name]
            config["batch"] = GLOBAL_BATCH // config["gpus"]
            if "dist_url" in config:
                config["dist_url"] = {
                    "tcp": f"tcp://127.0.0.1:{free_port()}",
                    "file": f"file://{out.parent}/meet",
                }[config["dist_url"]]
            with mock.patch.object(sys, "executable", python.get(name, sys.executable)):
                done[name] = run(out, env=LEFT_OVER, **config) if name in ROWS else ranks.run(out, **config)
        assert done[name].code == 0, f"{name}: {done[name].stderr}"
        return done[name]

    return get


def weights(result, step: int = STEPS) -> dict[str, np.ndarray]:
    """The parameters after a step, as rank 0 saved them."""
    return dict(np.load(result.run_dir / f"rank0-step{step}.npz"))


def differences(a: dict, b: dict) -> dict[str, np.ndarray]:
    """The absolute differences of all parameters."""
    assert a.keys() == b.keys() and a
    return {name: np.abs(a[name] - b[name]) for name in a}


def each(result, key: str) -> list:
    """One field of every rank's samples."""
    return [part[key] for part in result.record["samples"]]


# --- The same update ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY_ROW)
def test_weights_are_those_of_one_process(trained, name):
    single = trained("single")
    apart = differences(weights(single), weights(trained(name)))
    way = differences(weights(single, 1), weights(single))
    for tensor, difference in apart.items():
        bound = BOUND_OF_WAY * np.linalg.norm(way[tensor]) + LAST_BITS * np.sqrt(difference.size)
        assert np.linalg.norm(difference) <= bound, tensor


@pytest.mark.parametrize("name", EVERY_ROW)
def test_replicas_end_equal(trained, name):
    assert len(set(each(trained(name), "final_weights_sha256"))) == 1


@pytest.mark.parametrize("name", EVERY_ROW)
def test_replicas_start_from_rank_0s_weights(trained, name):
    """Every rank draws its own (see the last test of `independent`); the mode must have made them equal."""
    starts = set(each(trained(name), "initial_weights_sha256"))
    assert starts == set(each(trained("single"), "initial_weights_sha256"))


@pytest.mark.parametrize("name", EVERY_ROW)
def test_ranks_together_read_what_one_process_reads(trained, name):
    shares = each(trained(name), "first_indices")
    assert sorted(index for share in shares for index in share) == sorted(*each(trained("single"), "first_indices"))
    assert len({len(share) for share in shares}) == 1


def test_training_moves_every_weight(trained):
    """Agreement of weights that stand still would prove nothing."""
    single = trained("single")
    way = differences(weights(single, 1), weights(single))
    assert all(moved.max() > 0 for moved in way.values())
    assert max(moved.max() for moved in way.values()) > 100 * BOUND


@pytest.mark.parametrize("mode", [row(mode) for mode in ("dp", "ddp", "horovod", "zero1", "fsdp")])
def test_weights_are_those_of_one_process_with_adam(trained, mode):
    single, several = trained("single, adam"), trained(f"{mode}, adam")
    tensors = differences(weights(single), weights(several))
    apart = np.concatenate([difference.ravel() for difference in tensors.values()])
    assert apart.mean() <= ADAM_MEAN_BOUND
    assert (apart > BOUND).mean() <= APART_AT_MOST


def sent(result, verb: str) -> dict[str, int]:
    """Block -> the bytes that FSDP gathers of it, or scatters, in a step."""
    found = {}
    for span in result.loaded.samples[0].timeline["spans"]:
        name = span["name"].removeprefix(f"{verb} ")
        if span["lane"] == "communication" and name != span["name"]:
            found[name] = found.get(name, 0) + span["bytes"]
    return found


def test_fsdp_sends_half_of_the_bytes_in_bf16_and_steps_as_well(trained):
    plain, half, exact = (trained(name) for name in REFERENCES if name.startswith("fsdp, bf16"))
    for verb, one, share in (("gather", half, 2), ("gather", exact, 2), ("scatter", half, 2), ("scatter", exact, 1)):
        blocks, whole = sent(one, verb), sent(plain, verb)
        norms = {name: blocks.pop(f"norms of {name}", 0) for name in whole}
        assert any(norms.values())
        assert {name: share * blocks[name] + norms[name] for name in whole} == whole
    compression = [each(result, "facts")[0]["compression"] for result in (plain, half, exact)]
    assert compression == ["none", "bf16", "none"]
    ways = [differences(weights(plain, 1), weights(plain))]
    ways += [differences(weights(result), weights(plain)) for result in (half, exact)]
    way, rounded, same = (np.linalg.norm([np.linalg.norm(one) for one in tensors.values()]) for tensors in ways)
    assert (
        0 < rounded < BF16_APART * way and same < LAST_BITS * way
    )  # autocast rounds the weights as gathering them does
    assert all(len(set(each(result, "final_weights_sha256"))) == 1 for result in (half, exact))


# --- The baseline ---------------------------------------------------------------------------------------------------


def test_independent_processes_really_differ(trained):
    """They start apart, which also shows that each rank draws its own weights, and they never meet."""
    result = trained("independent")
    assert len(set(each(result, "initial_weights_sha256"))) == 2
    assert len(set(each(result, "final_weights_sha256"))) == 2
    assert each(result, "initial_weights_sha256")[0] == each(trained("single"), "initial_weights_sha256")[0]
    apart = differences(weights(trained("single")), weights(result))
    assert max(difference.max() for difference in apart.values()) > 100 * BOUND
    assert any("no gradients are exchanged" in note for note in result.record["topology"]["notes"])


@pytest.mark.wide
def test_with_sgd_weights_averaged_every_step_are_those_of_averaged_gradients(trained):
    """But for the rounding of the mean, which is that of a weight and not of its way: so the way of all is compared."""
    single = trained("single")
    apart = differences(weights(single), weights(trained("local, averaged every step")))
    way = differences(weights(single, 1), weights(single))
    assert max(difference.max() for difference in apart.values()) <= BOUND
    norms = [np.linalg.norm([np.linalg.norm(each) for each in tensors.values()]) for tensors in (apart, way)]
    assert norms[0] <= 10 * BOUND_OF_WAY * norms[1]


def test_ranks_that_average_their_weights_now_and_then_compute_another_update(trained):
    """Averaged after steps 2 and 4 of 5: not single's weights; and what is saved is the mean, the same on each rank."""
    result = trained("local")
    assert set(each(result, "initial_weights_sha256")) == set(each(trained("single"), "initial_weights_sha256"))
    assert len(set(each(result, "final_weights_sha256"))) == 1
    apart = differences(weights(trained("single")), weights(result))
    assert max(difference.max() for difference in apart.values()) > BOUND
    assert any("not the update of one process" in note for note in result.record["topology"]["notes"])
    facts = each(result, "facts")[0]
    assert "weights averaged every 2 steps" in facts["gradient"] and facts["memory_format"] == "channels_last"


# --- What a record says of a run of several processes -----------------------------------------------------------------


@pytest.mark.parametrize("name", LAUNCHED)
def test_the_record_is_whole_and_nothing_else_is_left(trained, name):
    result = trained(name)
    load(result.run_dir / "record.json")
    world_size = result.record["topology"]["world_size"]
    logs = {f"rank{rank}.log" for rank in range(world_size)} | {"launcher.log", "record.json"}
    saved = {f"rank{rank}-step{step}.npz" for rank in range(world_size) for step in (1, STEPS)}
    assert {p.name for p in result.run_dir.iterdir()} == logs | saved
    assert result.stdout.splitlines()[-1] == f"record: {result.run_dir / 'record.json'}"


@pytest.mark.parametrize("name", LAUNCHED)
def test_nothing_is_left_outside_the_runs_folder(trained, name):
    """Neither the file in which ranks meet, nor one that a strange folder's name led elsewhere."""
    out = trained(name).out
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    assert len(list(out.iterdir())) == 1


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_run_that_ends_well_warns_of_nothing(trained, name):
    """What stands in a rank's log is read when something is wrong: it must not be there every time."""
    logs = {
        path.name: re.sub(r"(?m)^step \d+ of 5, .* GiB\n", "", path.read_text())  # how it went on: on a slow machine
        for path in trained(name).run_dir.glob("rank*.log")
    }
    if (
        "profiled" in name
    ):  # torch's profiler says in a form of its own when it begins and ends, and that no GPU is there
        logs = {
            log: re.sub(r"(?m)^\w+:[-\d]+ [:\d]+ \d+:\d+ \w+\.cpp:\d+\] .*\n", "", text) for log, text in logs.items()
        }
    assert logs and not any(logs.values()), logs


@needs_horovod
def test_what_horovod_takes_from_the_environment_comes_through_its_launcher(trained):
    """It is asked by a variable for its timeline, in which all gradients are, and for reductions of less than all."""
    result = trained("horovod x2, tuned, fusion, profiled")
    for part in result.loaded.samples:
        spans = [span for span in part.timeline["spans"] if span["lane"] == "communication"]
        assert sum(span["bytes"] for span in spans) == 4 * part.facts["parameters"]
        assert len(spans) > 1


@pytest.mark.parametrize("name", EVERY_ROW)
def test_topology_and_samples_fit_together(trained, name):
    result = trained(name)
    topology, options = result.record["topology"], (ROWS | SHARED)[name]
    devices = options["gpus"]
    assert topology["num_devices"] == devices and topology["global_batch"] == GLOBAL_BATCH
    assert topology["world_size"] * topology["devices_per_process"] == devices
    assert each(result, "rank") == list(range(topology["world_size"]))
    assert len(set(each(result, "pid"))) == topology["world_size"]
    assert {len(times) for times in each(result, "step_time_s")} == {STEPS - 1}
    assert topology["loader_workers_total"] == options.get("workers", 0)


def test_a_sharded_step_gathers_and_scatters_what_the_formula_says(trained):
    """Of each block the weights twice and the gradient once; what is in no block is gathered once."""
    result = trained("fsdp x2, profiled")
    for part in result.loaded.samples:
        spans = [span for span in part.timeline["spans"] if span["lane"] == "communication"]
        sent = {kind: sum(s["bytes"] for s in spans if s["name"].startswith(kind)) for kind in ("gather", "scatter")}
        once = sum(s["bytes"] for s in spans if s["name"] == "gather the rest")
        size = 4 * part.facts["parameters"]
        assert sent == {"gather": 2 * size - once, "scatter": size}
        assert 0 < once < 0.01 * size and len(spans) == 3 * part.facts["blocks"] + 2
        assert part.facts["blocks"] == 8  # a resnet18's


def test_the_record_holds_the_bucket_size_that_ddp_used(trained):
    """Read back from the live object: 25 MiB where nobody asked for another."""
    sizes = {
        name: each(trained(name), "facts")[0]["bucket_cap_mb"] for name in ("ddp x2", "ddp x2, small buckets, views")
    }
    assert list(sizes.values()) == [25.0, 1.0]


def test_replicas_in_one_process_share_its_memory_and_the_record_says_so(trained):
    noted = {
        name: any(
            "all of them together" in note for part in each(trained(name), "devices") for note in part[0]["notes"]
        )
        for name in ("dp x2", "single", "ddp x2")
    }
    assert noted == {"dp x2": True, "single": False, "ddp x2": False}


@pytest.mark.parametrize("name", EVERY_ROW)
def test_no_mode_gets_more_threads_than_single_unless_it_is_said(trained, name):
    topology = trained(name).record["topology"]
    assert topology["threads_allowed"] == COMMON["threads"]
    noted = any("compute threads" in note for note in topology["notes"])
    assert noted == (topology["threads_total"] > topology["threads_allowed"])
    assert noted == (topology["num_devices"] > COMMON["threads"])  # a process a device, or a replica in a thread


def test_fsdp_takes_the_ordinary_sgd_where_fused_is_a_default_and_refuses_it_where_it_is_asked_for(tmp_path, ranks):
    """torch has no fused sgd for what fsdp shards."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = flags(**SMALL | {"mode": "fsdp", "gpus": 2, "fused": 1, "out": tmp_path / "default"})
    default = from_arguments(parser.parse_args(words)).labelled(gpu_defaults="fused=1")
    record = load(launch(resolve_here(default)))
    assert record.samples[0].facts["fused"] is False
    asked = ranks.run(tmp_path / "asked", mode="fsdp", gpus=2, fused=1)
    assert asked.code == 2 and "FUSED=1: torch has no fused sgd" in asked.last_error_line
