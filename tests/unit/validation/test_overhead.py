"""What the harness costs: the parts, tried at their smallest, and when a measurement counts."""

import subprocess
import sys

import pytest

from bench.config.options import RunConfig
from bench.measure.load import Load
from tests.validation.overhead import __main__ as overhead
from tests.validation.overhead import processes
from tests.validation.overhead.input_pipeline import write_photographs

BASE = RunConfig(num_devices=2, model="resnet18", device="cpu", image_size=16, per_device_batch=2, threads=2,
                 warmup_steps=1, timed_steps=1, baselines=False)  # fmt: skip


def test_without_namespaces_the_part_hosts_is_left_out_in_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("BENCH_CLUSTER", "/nowhere")  # inside of a cluster there can be no other
    assert overhead.hosts(BASE, 2, tmp_path, {}) == []
    said = capsys.readouterr().out
    assert said.startswith("left out: hosts: this is inside a cluster already") and said.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("program", [
    pytest.param(lambda config, photographs: processes.paired("loop", config, 2), id="loop"),
    pytest.param(lambda config, photographs: processes.paired("messages", config, 2, 2**12), id="messages"),
    pytest.param(lambda config, photographs: processes.batches(photographs, 32, 2), id="input"),
])  # fmt: skip
def test_the_harness_and_a_bare_loop_take_turns(program, tmp_path):
    write_photographs(tmp_path / "photographs")
    made = program(overhead.in_mode(BASE, "ddp"), tmp_path / "photographs")
    sample = processes.execute("paired", made, tmp_path / "out")
    assert "harness_s" in sample and all(len(blocks) == 2 and min(blocks) > 0 for blocks in sample.values())


@pytest.mark.slow
@pytest.mark.parametrize("until", ["join", "step"])
def test_a_bare_script_says_when_it_was_ready(until, tmp_path):
    sample = processes.execute("bare", processes.bare(overhead.in_mode(BASE, "ddp"), until), tmp_path / "out")
    assert set(sample) == {"ready_s"} and 0 < sample["ready_s"] < 300


def test_a_ratio_is_of_speeds_and_one_of_starts_is_of_seconds():
    twice = overhead.line("loop", "a", a_s=[1.0, 1.0, 1.0], b_s=[2.0, 2.0, 2.0], target=0.99)
    assert (twice["ratio"], twice["verdict"], twice["n"]) == (pytest.approx(2.0), "met", 3)
    slow = overhead.line("startup", "a", [1.0, 1.0], [2.0, 2.0], 1.1, at_most=True)
    assert (slow["ratio"], slow["verdict"]) == (pytest.approx(2.0), "missed")


@pytest.mark.parametrize(("others_s", "steal_s", "named"),
                         [(0.5, 0.0, []), (4.0, 0.0, ["others_cpu_share"]), (0.5, 2.0, ["steal_share"])])  # fmt: skip
def test_a_disturbed_measurement_of_the_harness_has_no_verdict(others_s, steal_s, named):
    lines = [{"verdict": "met"}, {"verdict": "missed"}, {"verdict": ""}]
    load = {"machine_cpu_s": 10.0 + others_s, "own_cpu_s": 10.0, "steal_s": steal_s, "cores": 2, "wall_s": 10.0}
    assert list(overhead.withhold(lines, load)) == named
    assert [line["verdict"] for line in lines] == (["disturbed", "disturbed", ""] if named else ["met", "missed", ""])


def test_what_ended_processes_have_used_is_the_measurements_own():
    load = Load()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    assert load.stop()["own_cpu_s"] > 0.45
