"""How a run goes on can be read while it does: lines outside a terminal, each rank's own log, each epoch at once."""

import re
import time

import pytest

from tests.multiprocess.broken import ENDLESS, ENGINES, failure_of
from tests.multiprocess.test_faults import stepping
from tests.runs import LASTING, bench, finish, needs_horovod, start_run, wait_for

EPOCHS = LASTING | {"gpus": 2, "batch": 120, "image_size": 8, "epochs": 2, "print_every": 2}  # six steps per epoch
RANK_LINE = re.compile(
    r"step (\d+) of 12, epoch (\d), [\d.e+]+ images/s(, loss [\d.]+ \(rank (\d)\))?, "
    r"waiting for data \d+ %, lr [\d.e-]+, [\d.]+ GiB"
)


@pytest.mark.parametrize("mode", ["ddp", pytest.param("horovod", marks=needs_horovod)])
def test_lines_epochs_and_every_ranks_log(mode, tmp_path, ranks):
    result = ranks.run(tmp_path, mode=mode, **EPOCHS)
    assert result.code == 0, result.stderr
    said = result.stdout.splitlines()
    assert any(re.match(rf"{mode}: step \d+ of 12, epoch 1, .* left$", line) for line in said), said
    losses = [line.partition(", loss ")[2] for line in said if line.startswith(f"{mode}: step ") and ", loss " in line]
    assert losses and all(" (rank 0), " in loss for loss in losses)  # the others have their own
    epochs = [number for number, line in enumerate(said) if line.startswith("epoch ")]
    table = next(number for number, line in enumerate(said) if line.startswith("CPU only"))
    assert len(epochs) == 2 and max(epochs) < table
    assert not any("loss" in line and "(rank 0)" not in line for line in said if line.startswith(f"{mode}: step"))
    for rank in range(2):
        log = (result.run_dir / f"rank{rank}.log").read_text().splitlines()
        lines = [RANK_LINE.fullmatch(line) for line in log]
        found = [(int(line[1]), int(line[2])) for line in lines if line]
        assert found == [(2, 1), (4, 1), (6, 1), (8, 2), (10, 2), (12, 2)]
        assert {line[4] for line in lines if line} == {str(rank)}
        validated = [line for line in log if line.startswith("validating")]
        assert validated == [f"validating epoch {epoch}, batch 2 of 2" for epoch in (1, 2)]
        assert [line for line in log if line.startswith("epoch ")] == [said[number] for number in epochs if rank == 0]
    rows = result.loaded.epochs
    assert all(0 <= row["train_top1"] <= row["train_top5"] <= 1 for row in rows)
    assert all(f"training top-1 {row['train_top1']:.4f}" in result.stdout for row in rows)


def test_steps_that_are_not_timed_are_counted_too(tmp_path, ranks):
    """Those in which a profiler looks, and the one of which every allocation is recorded."""
    options = EPOCHS | {"epochs": None, "gpus": 1, "print_every": 1, "warmup": 1, "steps": 2}
    result = ranks.run(tmp_path, mode="single", **options, profile=1, memory=1)
    assert result.code == 0, result.stderr
    log = (result.run_dir / "rank0.log").read_text()
    steps = [tuple(map(int, pair)) for pair in re.findall(r"^step (\d+) of (\d+),", log, re.MULTILINE)]
    assert steps[:3] == [(1, 3), (2, 3), (3, 3)] and len(steps) > 4
    assert all(step <= total == steps[-1][0] for step, total in steps[3:])


def test_an_epoch_is_printed_when_it_ends_and_not_with_the_table(tmp_path, copied_python):
    process = start_run(tmp_path, mode="single", **EPOCHS | {"gpus": 1, "epochs": 50})
    try:
        first = next(line for line in process.stdout if line.startswith("epoch 1"))
        time.sleep(0.5)
        assert process.poll() is None and "training top-1" in first
    finally:
        process.terminate()
        finish(process, tmp_path, timeout=150)


def test_training_metrics_are_those_of_one_process(tmp_path, ranks):
    """Without norms all modes compute the same; so do the counts over their ranks."""
    options = EPOCHS | {"norm": "none", "epochs": 1, "lr": 1e-4, "print_every": None}
    one = ranks.run(tmp_path / "one", mode="single", **options | {"gpus": 1, "batch": 240})
    two = ranks.run(tmp_path / "two", mode="ddp", **options)
    (alone,), (both,) = one.loaded.epochs, two.loaded.epochs
    assert both["train_top1"] == pytest.approx(alone["train_top1"], abs=0.01)


def test_somebody_else_watches_a_run_and_ends_it(tmp_path, forked_programs):
    """Every rank, while the run goes on, until SIGTERM interrupts it; and nothing to see is one line."""
    process = start_run(tmp_path, copies=forked_programs, **ENGINES["ddp by torchrun"], **ENDLESS)
    try:
        wait_for(stepping(tmp_path, 2), "every rank steps")
        seen = wait_for(
            lambda: (found := bench("status", tmp_path, "--once")).stdout.count("images/s") == 2 and found, ""
        )
        assert seen.code == 0 and "rank 1: step " in seen.stdout and "GiB (" in seen.stdout
    finally:
        process.terminate()
        result = finish(process, tmp_path, timeout=150)
    assert failure_of(result, code=130)["kind"] == "interrupted" and result.last_error_line == "bench: interrupted"
    nothing = bench("status", tmp_path, "--once")
    assert nothing.code == 2 and "no run is going on" in nothing.stderr and nothing.stderr.count("\n") == 1
