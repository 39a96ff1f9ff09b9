"""bench/analysis/tables.py: what the table of one run says when a few long steps moved a mean."""

from types import SimpleNamespace

import pytest
from rich.console import Console

from bench.analysis import tables
from bench.record import write as real
from tests import records


def run(mode: str, median_s: float, longest_s: float | None = None, **options) -> dict:
    """A record of one run of ten steps of 128 images, one of which may be long."""
    made = records.record(mode, **options)
    for part in made["samples"]:
        part["step_time_s"] = [median_s] * 9 + [longest_s or median_s]
        part["phase_time_s"] = {}
        part["data_wait_s"] = [0.0] * 10
    config = SimpleNamespace(mode=mode, global_batch=made["topology"]["global_batch"])
    made["summary"] = real.summarise(config, made["samples"])
    return made


def printed(record, baselines) -> str:
    """What a person sees, in one line."""
    console = Console(width=200)
    with console.capture() as capture:
        tables.print_run(console, record, baselines)
    return " ".join(capture.get().split())


@pytest.fixture
def ddp():
    """A quiet run of 1075 ms a step on four devices."""
    return run("ddp", 1.075, num_devices=4)


def test_a_ratio_that_one_long_step_turned_round_says_so(ddp):
    """As seen: single at 615 ms a step, but for one of 3.25 s and a half, printed as slower than ddp at 1,075 ms."""
    single = run("single", 0.615, 6.5, num_devices=1, batch=128)
    text = printed(ddp, [single])
    assert "0.89 ?" in text
    assert "single was disturbed: its mean step is 1.96 × its median step" in text and "6.50 s" in text
    assert "which of single and ddp is faster cannot be said" in text and "at 1.75 by the median steps" in text


def test_a_disturbed_run_is_named_where_the_order_stays_what_it_was(ddp):
    text = printed(ddp, [run("single", 0.615, 3.25, num_devices=1, batch=128)])
    assert "single was disturbed" in text and "cannot be said" not in text and " ?" not in text


def test_quiet_runs_have_no_warning(ddp):
    text = printed(ddp, [run("single", 0.615, num_devices=1, batch=128), run("independent", 0.9, num_devices=4)])
    assert "warning" not in text and "?" not in text and "1.75" in text


def test_a_run_without_others_is_named_too():
    assert "ddp was disturbed" in printed(run("ddp", 1.0, 5.0, num_devices=2), [])
