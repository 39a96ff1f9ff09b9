"""`bench gpu-check`: what it asks of a record, here of made-up ones."""

from bench.commands.gpu_check import check
from tests import records

QUESTION = "device 0 is the fullest under DP, without its data"


def of_dp(first_gib: float, data_gib: float):
    """A record of DP on two GPUs, of which the first has so much allocated and holds so much data, the other 4 GiB."""

    def change(data: dict) -> None:
        for row, gib in zip(data["summary"]["peak_memory_gib"], (first_gib, 4.0), strict=True):
            row["torch_allocated"] = gib
        data["samples"][0]["facts"]["data_on_device_bytes"] = int(data_gib * 2**30)

    (record,) = records.edited([records.record("dp", device="cuda")], change)
    return record


def test_data_on_the_first_device_does_not_make_it_the_fullest():
    """DATA=synthetic lies on device 0 alone: 0.29 GiB at 224 pixels, more than a small model's gradients."""
    answers = [{q: ok for q, ok, _ in check(of_dp(*gib))}[QUESTION] for gib in ((4.5, 0.2), (4.5, 0.6), (4.5, 0.0))]
    assert answers == [True, False, True]
