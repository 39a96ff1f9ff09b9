"""What the harness costs: the parts, tried at their smallest, and when a measurement counts."""

import pytest

from bench.config.options import RunConfig
from tests.validation.overhead import __main__ as overhead
from tests.validation.overhead import processes
from tests.validation.overhead.input_pipeline import write_photographs

BASE = RunConfig(num_devices=2, model="resnet18", device="cpu", image_size=16, per_device_batch=2, threads=2,
                 warmup_steps=1, timed_steps=1, baselines=False)  # fmt: skip
PAIRED = {
    "loop": lambda config, photographs: processes.paired("loop", config, 2),
    "messages": lambda config, photographs: processes.paired("messages", config, 2, 2**12),
    "input": lambda config, photographs: processes.batches(photographs, 32, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", ["loop", *(pytest.param(part, marks=pytest.mark.weekly) for part in ("messages", "input", "join", "step"))]
)
def test_each_part_is_measured(part, tmp_path, copied_python):
    """The harness and a bare loop take turns, and a bare script tells when it was ready: each starts ranks."""
    config = overhead.in_mode(BASE, "ddp")
    if part in PAIRED:
        write_photographs(tmp_path / "photographs")
        sample = processes.execute("paired", PAIRED[part](config, tmp_path / "photographs"), tmp_path / "out")
        assert "harness_s" in sample and all(len(blocks) == 2 and min(blocks) > 0 for blocks in sample.values())
    else:
        sample = processes.execute("bare", processes.bare(config, part), tmp_path / "out")
        assert set(sample) == {"ready_s"} and 0 < sample["ready_s"] < 300


@pytest.mark.parametrize(("others_s", "steal_s", "named"),
                         [(0.5, 0.0, []), (4.0, 0.0, ["others_cpu_share"]), (0.5, 2.0, ["steal_share"])])  # fmt: skip
def test_a_disturbed_measurement_of_the_harness_has_no_verdict(others_s, steal_s, named):
    lines = [{"verdict": "met"}, {"verdict": "missed"}, {"verdict": ""}]
    load = {"machine_cpu_s": 10.0 + others_s, "own_cpu_s": 10.0, "steal_s": steal_s, "cores": 2, "wall_s": 10.0}
    assert list(overhead.withhold(lines, load)) == named
    assert [line["verdict"] for line in lines] == (["disturbed", "disturbed", ""] if named else ["met", "missed", ""])
