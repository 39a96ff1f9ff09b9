"""bench/record/describe.py: which GPUs a record names, and how long its ranks waited for data from a URL."""

import pytest

from bench.analysis.style import provenance_lines
from bench.analysis.suite import suites_of
from bench.record.describe import machine_line, staging_sentence, stand_in
from tests import records

HERE = [{"index": i, "uuid": f"GPU-{i}", "name": name} for i, name in enumerate(["A40", "H100", "A40", "H100"])]


@pytest.mark.parametrize(
    ("mode", "used", "head", "devices"),
    [
        ("ddp", [1, 3], "2× H100", "GPU: 2× H100"),  # GPUS=1,3
        ("ddp", [0, 1], "1× A40 and 1× H100", "GPU: 2× A40 and H100"),
        ("dp", [1, 3], "2× H100", "GPU: 2× H100"),
        ("single", [3], "1× H100", "GPU: 1× H100"),
    ],
)
def test_a_record_is_of_the_gpus_that_it_used(mode, used, head, devices):
    """On a machine that has four, of two kinds."""

    def change(data: dict) -> None:
        data["environment"]["devices"] = HERE
        for device, index in zip((d for part in data["samples"] for d in part["devices"]), used, strict=True):
            device["uuid"] = f"GPU-{index}"

    (record,) = records.edited([records.record(mode, device="cuda", num_devices=len(used))], change)
    assert machine_line(record).startswith(f"{head}: Test(R) Processor") and stand_in(record) == devices
    failed = records.record("ddp", device="cuda", num_devices=2, failed="raised")  # has no devices: takes the first
    assert machine_line(failed).startswith("2× Test GPU 80GB:")


def test_threads_of_one_process_emulate_the_devices_of_dp():
    """Figures with other modes name the processes."""
    dp, ddp = records.record("dp"), records.record("ddp")
    assert stand_in(dp) == "CPU: no GPU is used, 2 threads of one CPU process emulate 2 devices"
    assert stand_in(ddp) == "CPU: no GPU is used, 2 CPU processes emulate 2 devices"
    programs = {mode: {"mode": mode} for mode in ("dp", "ddp")}
    (suite,) = suites_of(records.suite_records("compare", programs))
    assert stand_in(ddp) in provenance_lines(suite)[1]


@pytest.mark.parametrize(("data", "known"), [("s3://a/b", True), ("s3://a/b", False), ("digits", True)])
def test_data_from_a_url_have_the_seconds_of_the_rank_that_waited_longest(data, known):
    def ready(part: dict) -> None:
        if known:
            part["moments"]["data_ready"] = part["moments"]["joined"] + 1.5 + 3 * part["rank"]

    (record,) = records.edited([records.record("ddp", data=data)], records.in_samples(ready))
    said = staging_sentence(record)
    assert ("4.5 s" in said) == (known and data != "digits") == bool(said)
