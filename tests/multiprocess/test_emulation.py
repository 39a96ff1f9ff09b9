"""`bench cluster emulate` with real ranks on a cluster of namespaces: what it leaves, and that no link is outrun."""

import pytest

from bench.predict.emulation import record as records
from bench.record.read import find_records
from tests import profiles, runs
from tests.runs import needs_horovod

MBIT = 1e6 / 8  # bytes per second


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("mode", [
    "ddp", pytest.param("zero1", marks=pytest.mark.wide), pytest.param("fsdp", marks=pytest.mark.wide),
    pytest.param("horovod", marks=[pytest.mark.wide, needs_horovod]),
])  # fmt: skip
def test_two_nodes_wait_and_send_for_real(mode, tmp_path, copied_python):
    """20 MB over links of 1 Gbit/s, half as fast by the dilation: from the moment when the first gradient is there on,
    a step cannot be shorter than what is to be sent takes, and no wait is left out. Rank 0's one more step has its
    timeline: it waits as long as the profile computes, and every gradient is sent meanwhile."""
    run = profiles.record(tmp_path / "profile", throughput=400.0)
    words = (f"--mode={mode}", f"--compute={run}", "--nodes=2", "--link=1gbit", "--dilate=2", "--warmup=1", "--steps=3",
             "--profile=1")  # fmt: skip
    done = runs.bench("cluster", "emulate", *words, f"--out={tmp_path / 'out'}", out=tmp_path / "out").ok()
    path = done.run_dir / "emulation.json"
    record = records.load(path)
    assert done.stdout.rstrip().endswith(f"record: {path}") and record.kind in done.stdout
    assert record.kind == "emulated, ×2" and record.config.mode == mode
    assert record.network == "2 namespaces of one machine, links limited to 500 Mbit/s"
    assert find_records(tmp_path / "out", needed=False) == ([], []) and list(done.run_dir.glob("*.json")) == [path]
    profile = record.plan.profile
    assert record.plan.rate_mbit == 1000 and profile.nbytes == 20_000_000
    on_the_wire = profile.nbytes / (1000 * MBIT)  # of two ranks each sends half of it twice, at least
    before = 0.0 if mode == "fsdp" else profile.other_s + profile.forward_s + profile.tensors[1].ready_s
    least = max(0.75 * profile.step_s * min(profile.factors), 0.9 * (before + on_the_wire))
    assert len(record.steps_s) == 3 and all(seconds > least for seconds in record.steps_s)

    lanes = {}
    for span in record.timeline:
        lanes.setdefault(span["lane"], []).append(span)
    length = {lane: sum(span["end_s"] - span["start_s"] for span in spans) for lane, spans in lanes.items()}
    share = 0.5 if mode in ("zero1", "fsdp") else 1.0  # of the optimizer's step
    computed = profile.other_s + profile.forward_s + profile.backward_s + share * profile.optimizer_s
    assert length["compute"] > 0.75 * computed and length["communication"] > 0.9 * on_the_wire
    assert {"forward", "backward", "optimizer"} <= {span["name"] for span in lanes["phase"]}
    others = ("gather", "weights", "buffers")
    sizes = [span["bytes"] for span in lanes["communication"] if not span["name"].startswith(others)]
    assert sum(sizes) == pytest.approx(profile.nbytes, rel=0.01)
    assert all("timeline" not in part for part in record.data["samples"][1:])
