"""A rank that hangs, and ranks that wait for one another: found, named with its place in the code, and ended."""

from pathlib import Path

import pytest

from tests import runs
from tests.multiprocess import hangs, lone_collective
from tests.multiprocess.broken import ENGINES, NEEDS, bad_rank, engine, failure_of, wanted
from tests.runs import finish, start_run

WIDE = pytest.mark.wide
# A rank is found in the same way whoever has started it, and each engine's ranks are ended in test_faults.py. A rank
# that waits in a collective of Horovod takes a core.
HANGING = [engine(name, *[WIDE] * (name not in ("ddp by torchrun", "dp"))) for name in ENGINES]
# By torchrun: of `bench run` itself, in test_labs.py.
ALONE = [engine("horovod"), engine("ddp by torchrun", WIDE)]
HANG_TIMEOUT = 30  # longer than any phase of these runs takes on a busy machine
ALONE_TIMEOUT = 5  # of these runs, which do nothing once they have joined; Horovod's ranks take a core each meanwhile


@pytest.fixture(scope="module")
def hanging(request, tmp_path_factory, forked_programs):
    """``hanging[test, engine]``: every hanging run. They start at once, for most of the time they wait."""
    started = {}
    for name, options in ENGINES.items():
        if name in NEEDS and NEEDS[name].args[0]:
            continue
        if f"{test_a_rank_that_hangs.__name__}[{name}]" in wanted(request):
            out = tmp_path_factory.mktemp("hang")
            fault = f"hang:{bad_rank(name)}:2"
            process = start_run(
                out, module=hangs.__name__, copies=forked_programs, **options, fault=fault, timeout=HANG_TIMEOUT
            )
            started["hang", name] = out, process
        if f"{test_a_collective_that_rank_0_enters_alone.__name__}[{name}]" in wanted(request):
            out = tmp_path_factory.mktemp("alone")
            process = runs.start(options["mode"], out, ALONE_TIMEOUT, module=lone_collective.__name__)
            started["alone", name] = out, process
    yield started
    for _, process in started.values():
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@pytest.mark.parametrize("name", HANGING)
def test_a_rank_that_hangs(name, hanging):
    out, process = hanging["hang", name]
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
        "bench/training/hooks.py",
        "inject_fault",
        False,
    )
    assert f"at bench/training/hooks.py:{place['line']} (inject_fault)" in result.last_error_line
    assert all(other["collective"] is not False for other in failure["where"][:rank])  # they wait for it


@pytest.mark.parametrize("name", ALONE)
def test_a_collective_that_rank_0_enters_alone(name, hanging):
    out, process = hanging["alone", name]
    result = finish(process, out, timeout=400)
    failure = failure_of(result)
    places = [line_of("rank 0 waits here"), line_of("rank 1 waits here")]
    file = "tests/multiprocess/lone_collective.py"
    assert failure["where"] == [
        {"file": file, "line": places[0], "function": "count_hits", "collective": True},
        {"file": file, "line": places[1], "function": "agree", "collective": True},
    ]
    assert failure["kind"] == "hung" and failure["message"] == (
        f"no progress for {ALONE_TIMEOUT} s (TIMEOUT): rank 0 in a collective at {file}:{places[0]} (count_hits), "
        f"rank 1 in another at {file}:{places[1]} (agree): not all ranks entered it"
    )


def line_of(words: str) -> int:
    """The number of the one line of lone_collective.py with these words."""
    lines = Path(lone_collective.__file__).read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, start=1) if words in line]
    return number
