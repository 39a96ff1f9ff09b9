"""Processes that somebody stops (SIGSTOP) while they run: a rank, the launcher, `bench` itself. Stopped for good it is
a hang, named within the limit; continued in time it is a run like any other, and its record has the step times as they
were."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from bench.process.heartbeat import read_status
from tests import runs
from tests.multiprocess import hangs
from tests.multiprocess.broken import ENDLESS, ENGINES, failure_of, wanted
from tests.runs import Result, finish, needs_horovod, start_run

LIMIT_S = 20
AWAY_S = 4.0
# Horovod's ranks are stopped in test_a_rank_that_is_continued_in_time.
FOR_GOOD = ["ddp by torchrun", pytest.param("horovod", marks=[needs_horovod, pytest.mark.wide])]


def started(out, name: str, **options):
    """A run of two ranks that is in its timed steps: the process, and its folder."""
    process = start_run(out, **ENGINES[name] | options, module=hangs.__name__)
    runs.wait_for(lambda: all((beat := at(out, rank)) and beat.step > 2 for rank in (0, 1)), "both ranks step", 300)
    (run_dir,) = out.iterdir()
    return process, run_dir


def at(out, rank: int):
    """A rank's heartbeat; None before it has one."""
    folders = list(out.iterdir()) if out.is_dir() else []
    return read_status(folders[0], rank) if folders else None


def rank_for_good(out, copies, name: str) -> tuple[Result, float]:
    """Rank 1 is stopped. Also returns how many seconds later the run was over."""
    process, run_dir = started(out, name, copies=copies, **ENDLESS, timeout=LIMIT_S)
    psutil.Process(read_status(run_dir, 1).pid).suspend()
    since = time.monotonic()
    return finish(process, out, timeout=300), time.monotonic() - since


def rank_for_a_while(out, copies) -> Result:
    """Rank 1 is stopped, and continued."""
    process, run_dir = started(out, "horovod", copies=copies, steps=20, storage_ms=30)
    rank = psutil.Process(read_status(run_dir, 1).pid)
    rank.suspend()
    time.sleep(AWAY_S)
    rank.resume()
    return finish(process, out)


def bench_and_launcher(out, copies) -> Result:
    """`bench` is stopped and continued, and then its launcher is stopped for good: fresh processes, both of them."""
    process, _ = started(out, "ddp by torchrun", steps=60, storage_ms=30, timeout=LIMIT_S)
    (launcher,) = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGSTOP)
    time.sleep(AWAY_S)
    process.send_signal(signal.SIGCONT)
    launcher.suspend()
    return finish(process, out, timeout=300)


@pytest.fixture(scope="module")
def stopped(request, tmp_path_factory, forked_programs):
    """``stopped(function, …)``: what it returned. They all begin at once, for most of the time they wait."""
    asked = [(rank_for_good, "ddp by torchrun"), (bench_and_launcher,)]
    if not needs_horovod.args[0]:
        asked += [(rank_for_a_while,)]
        if f"{test_a_rank_that_is_stopped_is_named.__name__}[horovod]" in wanted(request):
            asked += [(rank_for_good, "horovod")]
    with ThreadPoolExecutor(len(asked)) as pool:
        begun = {
            call: pool.submit(call[0], tmp_path_factory.mktemp("stopped"), forked_programs, *call[1:]) for call in asked
        }
        yield lambda *call: begun[call].result()


@pytest.mark.parametrize("name", FOR_GOOD)
def test_a_rank_that_is_stopped_is_named(name, stopped):
    result, seconds = stopped(rank_for_good, name)
    failure = failure_of(result)
    assert (failure["rank"], failure["kind"]) == (1, "hung")
    assert failure["message"].startswith("rank 1 stopped by a signal (SIGSTOP) and not continued (rank 0: step ")
    assert f"no progress for {LIMIT_S} s (TIMEOUT)" in failure["message"]
    assert LIMIT_S - 1 < seconds < LIMIT_S + 150  # the stacks, and the end of the processes


@needs_horovod
def test_a_rank_that_is_continued_in_time(stopped):
    """The run ends well, and nobody is told less than what was measured: one long step, and a mean that it moved."""
    result = stopped(rank_for_a_while)
    assert result.code == 0, result.stderr
    assert all(max(sample.step_time_s) > AWAY_S - 0.5 for sample in result.loaded.samples)
    assert "horovod had uneven steps: the mean is" in result.stdout


def test_bench_and_then_its_launcher_are_stopped(stopped):
    """While `bench` is stopped the ranks go on, and it finds them when it is continued.
    A launcher that stays stopped when its ranks are done is a hang of its own, and does not stay."""
    failure = failure_of(stopped(bench_and_launcher))
    assert (failure["rank"], failure["kind"]) == (None, "hung")
    assert failure["message"].startswith("all ranks have finished, but the launcher did not exit")
