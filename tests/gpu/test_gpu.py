"""What only a GPU can show: NCCL, CUDA events, NVML's figures, DP's full first device."""

import numpy as np
import pytest
import torch

from bench.measure import nccl
from bench.measure.nvml import visible_gpus, why_no_gpu
from bench.record.read import load
from bench.workload.images import decode
from bench.workload.images.photographs import ImageSet
from bench.workload.images.sources import FolderSource
from tests.runs import left_behind, needs_horovod, run
from tests.validation.overhead.input_pipeline import write_photographs

GPUS = visible_gpus()
REASON = why_no_gpu() or "torch sees no GPU: its build has no CUDA, or the driver is too old for it"
pytestmark = pytest.mark.skipif(not (GPUS and torch.cuda.is_available()), reason=REASON)

SEVERAL = min(2, len(GPUS))
SMALL = {"device": "cuda", "data": "synthetic", "image_size": 64, "batch": 32, "warmup": 5, "steps": 30}
SAME_UPDATE = {"plain": 1, "norm": "none", "warmup": 1, "steps": 4, "snapshots": 5, "lr": 0.01}
MODES = [
    pytest.param("single", 1, id="single"),
    pytest.param("dp", SEVERAL, id="dp"),
    pytest.param("ddp", SEVERAL, id="ddp"),
    pytest.param("horovod", SEVERAL, id="horovod", marks=needs_horovod),
]
needs_two = pytest.mark.skipif(len(GPUS) < 2, reason=f"needs two GPUs, and there are {len(GPUS)}")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """``ran(mode, gpus, **options)``: a finished run on GPUs, made when it is first asked for."""
    done = {}

    def get(mode, gpus, **options):
        key = (mode, gpus, *options.items())
        if key not in done:
            done[key] = run(tmp_path_factory.mktemp("gpu"), **SMALL | {"mode": mode, "gpus": gpus} | options)
        assert done[key].code == 0, done[key].stderr
        return done[key]

    return get


def devices_of(result) -> list[dict]:
    return [device for part in result.record["samples"] for device in part["devices"]]


@pytest.mark.parametrize(("mode", "gpus"), MODES)
def test_every_mode_runs_on_gpus(ran, mode, gpus):
    """Memory by every source is in order, and the times of events agree with the wall clock."""
    result = ran(mode, gpus)
    record = load(result.run_dir / "record.json")
    assert record.on_gpu and record.topology["device"] == "cuda" and record.num_devices == gpus
    assert [device["device"] for device in devices_of(result)] == [f"cuda:{i}" for i in range(gpus)]
    assert len({part.final_weights_sha256 for part in record.samples}) == 1
    assert left_behind(result.pid) == []
    for device in devices_of(result):
        peak = device["peak_memory_gib"]
        assert 0 < peak["torch_allocated"] <= peak["torch_reserved"] <= peak["nvml_device"]
        if peak.get("nvml_process") is None:  # in some containers NVML does not know the process by its number
            assert any("process" in note for note in device["notes"])
        else:
            assert peak["torch_reserved"] <= peak["nvml_process"] <= peak["nvml_device"]
    for part in result.record["samples"]:
        wall = part["moments"]["last_timed_step"] - part["moments"]["first_timed_step"]
        assert sum(part["step_time_s"]) == pytest.approx(wall, rel=0.1, abs=0.05)


@needs_two
def test_dps_first_device_is_the_fullest(ran):
    result = ran("dp", 2)
    peaks = [device["peak_memory_gib"]["torch_allocated"] for device in devices_of(result)]
    peaks[0] -= result.record["samples"][0]["facts"]["data_on_device_bytes"] / 2**30
    assert peaks[0] == max(peaks) and peaks[0] > peaks[1]


@pytest.mark.parametrize(("mode", "gpus"), MODES[1:])
def test_the_same_update_as_one_gpu(ran, mode, gpus):
    """In float32, TF32 off. cuDNN's algorithms differ with the batch's size: the bound is wider than on a CPU."""
    one = ran("single", 1, **SAME_UPDATE, batch=32 * gpus)
    many = ran(mode, gpus, **SAME_UPDATE)
    left, right = (np.load(result.run_dir / "rank0-step5.npz") for result in (one, many))
    assert max(float(np.abs(left[name] - right[name]).max()) for name in left.files) <= 1e-4


@pytest.mark.parametrize("sharing", ["0", "1"])
def test_two_ranks_share_one_gpu_over_gloo_and_nccl(ran, monkeypatch, sharing):
    """NCCL takes two ranks on one GPU from 2.30 on; the record contains the library that they used."""
    monkeypatch.setenv(nccl.SHARING, sharing)
    over = "NCCL" if nccl.shared_variables() else "Gloo"
    result = ran("ddp", 2, share_gpu=1, seed=int(sharing))  # two runs
    assert [device["device"] for device in devices_of(result)] == ["cuda:0", "cuda:0"]
    assert any(over in note for note in result.record["topology"]["notes"])
    assert len({part["final_weights_sha256"] for part in result.record["samples"]}) == 1


def test_a_killed_rank_is_named_on_gpus(tmp_path):
    share = {} if len(GPUS) > 1 else {"share_gpu": 1}
    result = run(tmp_path, **SMALL | share | {"mode": "ddp", "gpus": 2, "fault": "kill:1:3"})
    assert result.code == 1 and "rank 1" in result.last_error_line
    assert left_behind(result.pid) == []


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_other_precisions_run(ran, precision):
    assert ran("single", 1, precision=precision).record["config"]["precision"] == precision


def test_the_defaults_are_those_of_the_gpu_and_plain_turns_them_off(ran):
    default, plain = (ran("single", 1, **options).record["config"] for options in ({}, {"plain": 1}))
    assert default["gpu_defaults"] and default["cudnn_benchmark"] and default["fused"]
    assert plain["precision"] == "fp32" and not (plain["cudnn_benchmark"] or plain["fused"] or plain["channels_last"])


@pytest.mark.parametrize("workers", [0, 2])
def test_photographs_are_decoded_on_the_gpu(ran, tmp_path, workers):
    """By nvJPEG, to nearly the pixels of the CPU's decoder."""
    device = torch.device("cuda", 0)
    if why := decode.why_not(device):
        pytest.skip(why)
    write_photographs(tmp_path / "photographs")
    source = FolderSource(tmp_path / "photographs", train=True)
    on_gpu, on_cpu = (ImageSet(source, 64, True, finish_on=where) for where in (device, None))
    draws = np.arange(16)
    apart = (on_gpu.finish(on_gpu[draws])[0].cpu().float() - on_cpu[draws][0].float()).abs()
    assert apart.mean() < 2 and apart.max() < 64
    options = {"data": f"imagefolder:{tmp_path / 'photographs'}", "decode": "cuda", "workers": workers, "steps": 5}
    record = ran("single", 1, **options).record
    assert "GPU" in record["samples"][0]["facts"]["decoder"]


def test_real_images_through_loader_workers(ran):
    result = ran("ddp", SEVERAL, data="digits", workers=SEVERAL, epochs=1)
    assert result.record["accuracy"]["epochs"][0]["images"] == 360


def test_more_gpus_than_there_are(tmp_path):
    result = run(tmp_path, **SMALL | {"mode": "ddp", "gpus": len(GPUS) + 1})
    assert result.code == 2 and f"GPUS={len(GPUS)}" in result.stderr and "DEVICE=cpu" in result.stderr
