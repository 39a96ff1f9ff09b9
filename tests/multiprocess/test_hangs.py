"""A rank that hangs, and ranks that wait for one another: found, named with its place in the code, and ended."""

from pathlib import Path

import pytest

from tests import runs
from tests.multiprocess import hangs, lone_collective
from tests.multiprocess.broken import ENGINES, EVERY_ENGINE, bad_rank, failure_of
from tests.runs import finish, needs_horovod, start_run

COLLECTIVE_ENGINES = [p for p in EVERY_ENGINE if p.id in ("ddp by torchrun", "horovod")]
HANG_TIMEOUT = 30  # longer than any phase of these runs takes on a busy machine


@pytest.fixture(scope="module")
def hanging(tmp_path_factory):
    """Every hanging run: they start at once, for most of the time they wait."""
    started = {}
    for name, options in ENGINES.items():
        if options["mode"] != "horovod" or not needs_horovod.args[0]:
            out = tmp_path_factory.mktemp("hang")
            fault = f"hang:{bad_rank(name)}:2"
            started[name] = out, start_run(out, **options, fault=fault, timeout=HANG_TIMEOUT, module=hangs.__name__)
    for name in (p.id for p in COLLECTIVE_ENGINES if p.id in started):
        out, mode = tmp_path_factory.mktemp("alone"), ENGINES[name]["mode"]
        started[f"{name}, collective"] = out, runs.start(mode, out, HANG_TIMEOUT, module=lone_collective.__name__)
    yield started
    for _, process in started.values():
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@pytest.mark.parametrize("name", EVERY_ENGINE)
def test_a_rank_that_hangs(name, hanging):
    out, process = hanging[name]
    result = finish(process, out, timeout=400)
    rank, failure = bad_rank(name), failure_of(result)
    assert (failure["rank"], failure["kind"]) == (rank, "hung")
    assert f"rank {rank}: step 3 of 3, waiting for data" in result.last_error_line
    assert "TIMEOUT" in result.last_error_line
    if name != "dp":
        assert f"rank {rank} hangs and the others wait for it" in result.last_error_line
    assert "inject_fault" in failure["traceback"]  # where it hangs, from the rank's own stacks
    place = failure["where"][rank]
    assert (place["file"], place["function"], place["collective"]) == (
        "bench/training/loop.py",
        "inject_fault",
        False,
    )
    assert f"at bench/training/loop.py:{place['line']} (inject_fault)" in result.last_error_line
    assert all(other["collective"] is not False for other in failure["where"][:rank])  # they wait for it


@pytest.mark.parametrize("name", COLLECTIVE_ENGINES)
def test_a_collective_that_rank_0_enters_alone(name, hanging):
    out, process = hanging[f"{name}, collective"]
    result = finish(process, out, timeout=400)
    failure = failure_of(result)
    places = [line_of("rank 0 waits here"), line_of("rank 1 waits here")]
    file = "tests/multiprocess/lone_collective.py"
    assert failure["where"] == [
        {"file": file, "line": places[0], "function": "count_hits", "collective": True},
        {"file": file, "line": places[1], "function": "agree", "collective": True},
    ]
    assert failure["kind"] == "hung" and failure["message"] == (
        f"no progress for {HANG_TIMEOUT} s (TIMEOUT): rank 0 in a collective at {file}:{places[0]} (count_hits), "
        f"rank 1 in another at {file}:{places[1]} (agree): not all ranks entered it"
    )


def line_of(words: str) -> int:
    """The number of the one line of lone_collective.py with these words."""
    lines = Path(lone_collective.__file__).read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, start=1) if words in line]
    return number
