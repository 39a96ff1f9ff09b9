"""A rank that hangs, one that is stopped (SIGSTOP), and ranks that wait for one another: found within the limit, named
with its place in the code, and ended. Continued in time it is a run like any other."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests import runs
from tests.multiprocess import hangs
from tests.multiprocess.broken import ENDLESS, ENGINES, bad_rank, engine, failure_of
from tests.runs import Result, finish, start_run

WIDE = pytest.mark.wide
# A rank is found in the same way with every launcher, and each engine's ranks are ended in test_faults.py.
HANGING = [engine(name, *[WIDE] * (name not in ("ddp by torchrun", "dp"))) for name in ENGINES]
LIMIT_S = 20  # longer than any phase of these runs takes on a busy machine
AWAY_S = 4.0


def hung(out, copies, name: str) -> Result:
    """The last rank waits for nothing, in the third step."""
    options = ENGINES[name] | {"fault": f"hang:{bad_rank(name)}:2", "timeout": LIMIT_S}
    return finish(start_run(out, module=hangs.__name__, copies=copies, **options), out, timeout=400)


def alone(out, copies, name: str) -> Result:
    """Rank 0 enters a collective that the other does not."""
    own = {"timeout": 5, "model": f"{hangs.__file__}:with_horovods_wait"} if name == "horovod" else {}
    options = ENGINES[name] | {"batch": 240, "epochs": 1, "mistake": "rank0-collective", "timeout": 2 * LIMIT_S} | own
    return finish(start_run(out, module=hangs.__name__, copies=copies, **options), out, timeout=400)


def started(out, name: str, **options):
    """A run of two ranks that is in its timed steps: its process, and that of rank 1."""
    process = start_run(out, **ENGINES[name] | options, module=hangs.__name__)
    return process, psutil.Process(runs.both_step(out)[1].pid)


def stopped(out, copies, name: str) -> Result:
    """Rank 1, for good."""
    process, rank = started(out, name, copies=copies, **ENDLESS, timeout=LIMIT_S)
    rank.suspend()
    return finish(process, out, timeout=LIMIT_S + 150)  # the stacks, and the end of the processes


def stopped_for_a_while(out, copies, name: str) -> Result:
    """Rank 1, and continued."""
    process, rank = started(out, name, copies=copies, steps=20, storage_ms=30)
    rank.suspend()
    time.sleep(AWAY_S)
    rank.resume()
    return finish(process, out)


def stopped_launcher(out, copies, name: str) -> Result:
    """`bench` is stopped and continued, and then its launcher is stopped for good, or who stands in for it."""
    process, _ = started(out, name, copies=copies, steps=60, storage_ms=30, timeout=LIMIT_S)
    (launcher,) = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGSTOP)
    time.sleep(AWAY_S)
    process.send_signal(signal.SIGCONT)
    launcher.suspend()
    return finish(process, out, timeout=300)


@pytest.fixture(scope="module")
def result(request, tmp_path_factory, forked_programs):
    """``result(call)``: what a call of this file's tests returned. They all begin at once, for most of the time they
    wait."""
    items = [item for item in request.session.items if item.path == request.path]
    items = [item for item in items if not any(mark.args[0] for mark in item.iter_markers("skipif"))]
    calls = {item.callspec.params["call"] for item in items}
    with ThreadPoolExecutor(max(1, len(calls))) as pool:
        folders = {call: tmp_path_factory.mktemp("hang") for call in calls}
        begun = {call: pool.submit(call[0], folders[call], forked_programs, *call[1:]) for call in calls}
        yield lambda call: begun[call].result()


def of_engines(function, *engines):
    """A test of what ``function`` returns of each engine."""
    given = [pytest.param((function, *each.values), id=each.id, marks=each.marks) for each in engines]
    return pytest.mark.parametrize("call", given)


@of_engines(hung, *HANGING)
def test_a_rank_that_hangs(call, result):
    found = result(call)
    rank, failure = bad_rank(call[1]), failure_of(found)
    assert (failure["rank"], failure["kind"]) == (rank, "hung")
    assert f"rank {rank}: step 3 of 3" in found.last_error_line and "TIMEOUT" in found.last_error_line
    assert "inject_fault" in failure["traceback"]  # where it hangs, from the rank's own stacks
    place = failure["where"][rank]
    assert (place["file"], place["function"], place["collective"]) == (
        "bench/training/hooks.py", "inject_fault", False,
    )  # fmt: skip
    assert f"bench/training/hooks.py:{place['line']} (inject_fault)" in found.last_error_line
    assert all(other["collective"] is not False for other in failure["where"][:rank])  # they wait for it


@of_engines(alone, engine("ddp by torchrun"), engine("horovod"))
def test_a_collective_that_rank_0_enters_alone(call, result):
    found = result(call)
    failure, limit = found.loaded.failure, found.loaded.config.timeout
    assert found.code == 1 and failure["kind"] == "hung" and found.loaded.hung and failure["after_s"] > limit
    assert f"{limit:g} s" in found.last_error_line and "TIMEOUT" in found.last_error_line
    assert "INJECT=rank0-collective" in " ".join(found.stdout.split())
    assert runs.left_behind(found.pid, within=30) == []
    waits = [(place["file"], place["line"]) for place in failure["where"] if place["collective"]]
    assert len(set(waits)) == 2  # both ranks wait, each in its own collective
    assert all(f"{file}:{line}" in failure["message"] for file, line in waits)


@of_engines(stopped, engine("ddp by torchrun"), engine("horovod", WIDE))
def test_a_rank_that_is_stopped(call, result):
    """Horovod's are stopped in the test after this one."""
    failure = failure_of(result(call))
    assert (failure["rank"], failure["kind"]) == (1, "hung")
    assert failure["message"].startswith("rank 1 ") and "SIGSTOP" in failure["message"]
    assert f"no progress for {LIMIT_S} s" in failure["message"] and failure["after_s"] > LIMIT_S - 1


@of_engines(stopped_for_a_while, engine("horovod"))
def test_a_rank_that_is_continued_in_time(call, result):
    """The run ends well, and every message contains what was measured: one long step, and a mean that it moved."""
    found = result(call).ok()
    assert all(max(sample.step_time_s) > AWAY_S - 0.5 for sample in found.loaded.samples)
    assert "uneven" in found.stdout


@of_engines(stopped_launcher, engine("ddp by torchrun"))
def test_bench_and_then_its_launcher_are_stopped(call, result):
    """While `bench` is stopped the ranks continue, and it finds them when it is continued.
    A launcher that stays stopped when its ranks are done is a separate hang, and does not stay."""
    failure = failure_of(result(call))
    assert (failure["rank"], failure["kind"]) == (None, "hung") and "launcher" in failure["message"]
