"""bench selfbench: the part on a GPU, whose loop runs here on a CPU, and is no figure; parts that are left out."""

import subprocess
import sys

import pytest

from bench.analysis.tables import terminal
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.errors import UserError
from bench.measure.load import Load
from bench.proof.selfbench import benchmark, processes
from bench.proof.selfbench.input_pipeline import write_photographs
from tests.shown import in_one_line

pytestmark = pytest.mark.slow


def test_the_loop_of_the_part_gpu_and_the_bare_one_run_in_turns(tmp_path):
    """The lines that a GPU will run, with the settings that they read: in fp32, as a CPU has it."""
    asked = RunConfig(mode="single", data="synthetic", image_size=32, per_device_batch=2, model="resnet18", threads=1,
                      warmup_steps=1, timed_steps=2, channels_last=True, fused=True)  # fmt: skip
    program = processes.gpu_loop(resolve(asked, "cpu", 1), pairs=2)
    sample = processes.execute("gpu", program, tmp_path / "gpu")
    assert {name: len(blocks) for name, blocks in sample.items()} == {"harness_s": 2, "bare_s": 2}
    assert all(seconds > 0 for blocks in sample.values() for seconds in blocks)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_without_a_gpu_the_part_is_left_out_in_one_line(device, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(benchmark, "usable_gpus", lambda asked: [])
    assert benchmark.run(RunConfig(out=str(tmp_path / "out"), device=device), rounds=2, only="gpu") == 0
    said = capsys.readouterr().out
    assert said.startswith("left out: gpu: no GPU is visible here") and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_without_namespaces_the_part_hosts_is_left_out_in_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("BENCH_CLUSTER", "/nowhere")  # inside of a cluster there can be no other
    assert benchmark.run(RunConfig(out=str(tmp_path / "out")), rounds=2, only="hosts") == 0
    said = capsys.readouterr().out
    assert said.startswith("left out: hosts: this is inside of a cluster already") and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_part_runs_what_is_chosen_for_the_gpu(monkeypatch):
    monkeypatch.setattr(benchmark, "usable_gpus", lambda asked: ["a GPU"])
    monkeypatch.setattr(benchmark, "resolve_here", lambda asked: resolve(asked, "cuda", 8, (9, 0), 79.6))
    config = benchmark.gpu_config(RunConfig())
    assert (config.mode, config.data, config.precision, config.per_device_batch) == ("single", "synthetic", "bf16", 256)
    assert (config.warmup_steps, config.timed_steps, config.baselines) == (20, 10, False)
    line = benchmark.judge_gpu(config, sample := {"harness_s": [1.02, 1.01, 1.02], "bare_s": [1.0, 1.0, 1.0]})
    assert "bf16, channels_last, cudnn_benchmark, fused" in line["name"] and line["target"] == 0.98
    assert line["verdict"] in ("met", "inconclusive") and 0.97 < line["ratio"] < 1
    assert in_one_line(benchmark.gpu_words(config, sample)).endswith("2510 images/s, bare 2560")
    assert benchmark.gpu_config(RunConfig(precision="fp32", plain=True)).per_device_batch == 64


def test_only_the_part_gpu_takes_a_gpu_and_its_settings():
    assert benchmark.check(RunConfig(precision="tf32", plain=True, device="cuda"), ("gpu",))
    with pytest.raises(UserError, match="selfbench sets PRECISION itself"):
        benchmark.check(RunConfig(precision="tf32"), benchmark.PARTS)
    with pytest.raises(UserError, match="but for ONLY=gpu"):
        benchmark.check(RunConfig(device="cuda"), ("loop",))


def test_the_input_pipeline_alone_is_timed_as_a_run_has_it(tmp_path):
    """On a CPU there is one way to decode."""
    write_photographs(tmp_path / "photographs")
    asked = RunConfig(mode="single", data=f"imagefolder:{tmp_path / 'photographs'}", image_size=32, workers=1,
                      per_device_batch=4, threads=1, in_memory=False)  # fmt: skip
    sample = processes.execute("fed", processes.fed(resolve(asked, "cpu", 1), 2, 3), tmp_path / "fed")
    assert list(sample) == ["workers_s"] and len(sample["workers_s"]) == 2 and min(sample["workers_s"]) > 0


def test_what_the_input_pipeline_feeds_is_said_for_both_ways_to_decode(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(benchmark, "usable_gpus", lambda asked: ["a GPU"])
    monkeypatch.setattr(benchmark, "resolve_here", lambda asked: resolve(asked, "cuda", 8, (9, 0), 79.6))
    monkeypatch.setattr(processes, "execute", lambda *_: {"workers_s": [2.56] * 4, "nvjpeg_s": [0.64] * 4})
    benchmark.feed(terminal(), RunConfig(), tmp_path)
    said = in_one_line(capsys.readouterr().out)
    assert "workers decode: 1000 images/s" in said and "the GPU decodes: 4000 images/s" in said


@pytest.mark.parametrize(("others_s", "steal_s", "named"),
                         [(0.5, 0.0, []), (4.0, 0.0, ["others_cpu_share"]), (0.5, 2.0, ["steal_share"])])  # fmt: skip
def test_a_disturbed_measurement_of_the_harness_has_no_verdict(others_s, steal_s, named):
    lines = [{"verdict": "met"}, {"verdict": "missed"}, {"verdict": ""}]
    load = {"machine_cpu_s": 10.0 + others_s, "own_cpu_s": 10.0, "steal_s": steal_s, "cores": 2, "wall_s": 10.0}
    assert list(benchmark.withhold(lines, load)) == named
    assert [line["verdict"] for line in lines] == (["disturbed", "disturbed", ""] if named else ["met", "missed", ""])


def test_what_ended_processes_have_used_is_the_measurements_own():
    load = Load()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    assert load.stop()["own_cpu_s"] > 0.45
