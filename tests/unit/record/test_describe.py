"""bench/record/describe.py: which GPUs a record is said to be of, and how long its ranks waited for data from a URL."""

import pytest

from bench.record.describe import machine_line, staging_sentence, stand_in
from tests import records

HERE = [{"index": i, "uuid": f"GPU-{i}", "name": name} for i, name in enumerate(["A40", "H100", "A40", "H100"])]


def used(*indices: int, mode: str = "ddp"):
    """A record of these GPUs, of a machine that has four, of two kinds."""

    def change(data: dict) -> None:
        data["environment"]["devices"] = HERE
        devices = [device for part in data["samples"] for device in part["devices"]]
        for device, index in zip(devices, indices, strict=True):
            device["uuid"] = f"GPU-{index}"

    record = records.record(mode, device="cuda", num_devices=len(indices))
    return records.edited([record], change)[0]


@pytest.mark.parametrize(
    ("record", "head", "devices"),
    [
        (used(1, 3), "2× H100", "GPU: 2× H100"),  # GPUS=1,3
        (used(0, 1), "1× A40 and 1× H100", "GPU: 2× A40 and H100"),
        (used(1, 3, mode="dp"), "2× H100", "GPU: 2× H100"),
        (used(3, mode="single"), "1× H100", "GPU: 1× H100"),
    ],
)
def test_a_record_is_of_the_gpus_that_it_used(record, head, devices):
    assert machine_line(record).startswith(f"{head}: Test(R) Processor") and stand_in(record) == devices


def test_a_run_that_failed_has_no_devices_and_takes_the_first():
    record = records.record("ddp", device="cuda", num_devices=2, failed="raised")
    assert machine_line(record).startswith("2× Test GPU 80GB:")


@pytest.mark.parametrize(
    ("data", "known", "seconds"), [("s3://a/b", True, "4.5"), ("s3://a/b", False, ""), ("digits", True, "")]
)
def test_data_from_a_url_have_the_seconds_of_the_rank_that_waited_longest(data, known, seconds):
    def ready(part: dict) -> None:
        if known:
            part["moments"]["data_ready"] = part["moments"]["joined"] + 1.5 + 3 * part["rank"]

    (record,) = records.edited([records.record("ddp", data=data)], records.in_samples(ready))
    said = staging_sentence(record)
    assert f"{seconds} s" in said if seconds else said == ""
