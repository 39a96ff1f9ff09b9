"""Functions of a notebook on ranks: real kernels, real processes. One kernel and one launch serve many tests."""

import ast
import os
import socket
import subprocess
import sys

import psutil
import pytest

from bench.course import ranks, start
from bench.course.ranks import MOST_LINES, RankOutput, run_on_ranks
from bench.errors import RunFailed, UserError
from bench.files import LINUX
from tests.notebooks.kernel import Kernel
from tests.runs import ROOT, descendants, needs_horovod, wait_for

pytest.importorskip("ipykernel", reason="the notebooks extra is not installed")

SETUP = """
    import numpy as np
    import torch
    import torch.distributed as dist
    from bench import course
    from bench.errors import BenchError
    scale = torch.tensor([3.0])
    class Pair:
        def __init__(self, first, second): self.first, self.second = first, second
    def times(x):
        return x * scale
    def failure_of(function, *arguments, **options):
        try:
            course.run_on_ranks(function, 2, *arguments, **options)
        except BenchError as error:
            print("END", type(error).__name__, error)
            return getattr(error, "failure", None)
"""
CELLS = {
    "torch": """
        def summed(factor, *, more=0):
            total = times(torch.ones(2) * (dist.get_rank() + factor))
            dist.all_reduce(total)
            print("total", total.tolist())
            print()
            print("no end", end="")
            return Pair(dist.get_rank(), total)
        pairs = course.run_on_ranks(summed, 2, 1)
        [isinstance(p, Pair) for p in pairs], [p.first for p in pairs], [p.second.tolist() for p in pairs]
    """,
    "bare": """
        def alone():
            import os
            names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
            guarded = os.environ["BENCH_LAUNCHER_PID"]
            return [os.environ[name] for name in names], dist.is_initialized(), np.random.rand(), guarded
        (first, joined, a, by), (second, _, b, _) = course.run_on_ranks(alone, 2, engine="bare")
        import os
        first, second, joined, a == b, by == str(os.getpid())
    """,
    "raises": """
        def broken(x):
            if dist.get_rank() == 1:
                print("just before")
                raise ValueError(f"no {x}")
            dist.barrier()
        failure_of(broken, 7)
    """,
    "raises, quietly": """
        failure_of(broken, 7, quiet=True);
    """,
    "hangs": """
        def stuck():
            print("here", flush=True)
            if dist.get_rank() == 0:
                dist.barrier()
            import time
            time.sleep(100)
        failure_of(stuck, timeout=3);
    """,
    "exits": """
        def gone():
            import os
            if dist.get_rank() == 1:
                os._exit(5)
            dist.barrier()
        failure_of(gone);
    """,
    "killed": """
        def killed():
            import os, signal
            if dist.get_rank() == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.barrier()
        failure_of(killed);
    """,
    "result": """
        failure_of(lambda: (x for x in [1]));
    """,
    "function": """
        import threading
        lock = threading.Lock()
        failure_of(lambda: lock);
    """,
}
HOROVOD = {
    "horovod": """
        def hvd_sum():
            import horovod.torch as hvd
            return hvd.allreduce(torch.ones(1) * hvd.rank(), op=hvd.Sum).item()
        course.run_on_ranks(hvd_sum, 2, engine="horovod")
    """,
    "horovod raises": """
        def hvd_broken():
            import horovod.torch as hvd
            if hvd.rank() == 1:
                raise ValueError("no")
            hvd.allreduce(torch.ones(1))
        failure_of(hvd_broken, engine="horovod");
    """,
}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    with Kernel(tmp_path_factory.mktemp("kernel")) as found:
        assert found.run(SETUP).raised == ""
        yield found


@pytest.fixture(scope="module")
def said(kernel):
    """What each cell said; cell n of the notebook is the n-th here, plus one for the setup."""
    return {name: kernel.run(code) for name, code in CELLS.items()}


def cell_of(name: str) -> str:
    """What a cell of CELLS is called in a traceback."""
    return f"cell [{list(CELLS).index(name) + 2}]"


def lines(said) -> list[str]:
    return said.printed.splitlines()


def end(said) -> str:
    """The line with the error."""
    assert said.raised == "", said.traceback
    return next(line for line in lines(said) if line.startswith("END "))


def test_results_come_back_by_rank_and_in_the_classes_of_the_notebook(said):
    assert said["torch"].raised == "", said["torch"].traceback
    shown = said["torch"].shown[0]["text/plain"]
    assert shown == "([True, True], [0, 1], [[9.0, 9.0], [9.0, 9.0]])"


def test_every_line_names_its_rank(said):
    printed = lines(said["torch"])
    for rank in (0, 1):
        mine = [line for line in printed if line.startswith(f"[rank {rank}]")]
        assert mine == [f"[rank {rank}] total [9.0, 9.0]", f"[rank {rank}]", f"[rank {rank}] no end"]
    assert len(printed) == 6


def test_bare_ranks_have_the_variables_and_no_group(said):
    assert " ".join(said["bare"].shown[0]["text/plain"].split()) == (
        "(['0', '0', '2', '127.0.0.1'], ['1', '1', '2', '127.0.0.1'], False, False, True)"
    ), "then: NumPy's random numbers are not the same on both; a rank ends with this kernel"


def test_an_exception_names_rank_and_line(said):
    cell = cell_of("raises")
    assert end(said["raises"]) == f"END RunFailed rank 1 raised ValueError: no 7 ({cell}, line 4, in broken)"
    printed = lines(said["raises"])
    trace = printed.index("[rank 1] Traceback (most recent call last):")
    assert "[rank 1] just before" in printed[:trace]
    assert printed[trace + 1] == f'[rank 1]   File "{cell}", line 4, in broken'
    assert printed[trace + 2].strip().endswith('raise ValueError(f"no {x}")')
    assert "[rank 1] ValueError: no 7" in printed


def test_the_others_say_one_line_after_the_cause(said):
    printed = lines(said["raises"])
    others = [line for line in printed if line.startswith("[rank 0]")]
    assert len(others) == 1 and others[0].startswith("[rank 0] stopped, too: ") and len(others[0]) < 140
    assert printed.index(others[0]) > printed.index("[rank 1] ValueError: no 7")
    assert "/pair.cc" not in others[0]


def test_the_failure_is_there_to_be_read(said):
    shown = said["raises"].shown[0]["text/plain"]
    assert "'rank': 1" in shown and "'kind': 'raised'" in shown and cell_of("raises") in shown
    assert "ipykernel_" not in said["raises"].printed + shown and "bench/course/start.py" not in shown


def test_quiet_says_the_error_alone(said):
    assert lines(said["raises, quietly"]) == [end(said["raises, quietly"])]
    assert end(said["raises, quietly"]) == end(said["raises"])


def test_a_hang_ends_and_says_who_waits(said):
    line = end(said["hangs"])
    cell = cell_of("hangs")
    assert "rank 1 hangs and the others wait for it" in line and "no progress for 3 s (timeout=)" in line
    assert f"{cell}:4 (stuck)" in line and f"{cell}:6 (stuck)" in line
    assert sorted(lines(said["hangs"])[:-1]) == ["[rank 0] here", "[rank 1] here"], "no stacks in the notebook"


def test_a_rank_that_exits(said):
    assert end(said["exits"]) == "END RunFailed rank 1 ended with exit code 5 before the function returned"


def test_a_rank_that_is_killed(said):
    assert end(said["killed"]) == "END RunFailed rank 0 was killed by SIGKILL (out of memory?)"


def test_what_cannot_travel(said):
    assert "what the function returns (generator) cannot be sent back" in end(said["result"])
    assert "the function cannot be sent to other processes: cannot pickle '_thread.lock'" in end(said["function"])


@needs_horovod
def test_horovod(kernel):
    assert kernel.run(HOROVOD["horovod"]).shown[0]["text/plain"] == "[1.0, 1.0]"
    said = kernel.run(HOROVOD["horovod raises"])
    assert "rank 1 raised ValueError: no (cell [" in end(said)
    assert [line[:23] for line in lines(said) if line.startswith("[rank 0]")] == ["[rank 0] stopped, too: "]


def test_nothing_is_left(kernel, said):
    assert kernel.left() == []


def test_an_interrupt_of_the_kernel_ends_the_ranks(kernel):
    code = """
        def wait():
            import time
            print("waiting")
            time.sleep(100)
        course.run_on_ranks(wait, 2)
    """
    assert kernel.run(code, do_when=("waiting", kernel.manager.interrupt_kernel)).raised.startswith("KeyboardInterrupt")
    assert kernel.left() == []


forks = pytest.mark.skipif(not LINUX, reason="a fork is safe on Linux alone")

# As where there are GPUs: the process that stays imports torch, and no more. It starts in half the time.
TORCH_ALONE = "from bench.course import ranks; ranks.visible_gpus = lambda: ['a GPU']"

FAMILY = """
    def family():
        import psutil
        return [process.pid for process in psutil.Process().parents()]
    course.run_on_ranks(family, 2, engine="bare")
"""


@forks
def test_ranks_of_later_calls_are_forked_from_one_process(kernel):
    """Which is another one when a variable has changed that a library may have read while it was loaded."""
    (stays,) = kernel.staying()
    ranks = ast.literal_eval(kernel.run(FAMILY).shown[0]["text/plain"])
    assert [family[1:3] for family in ranks] == [[stays.pid, kernel.pid]] * 2, "the second is who starts and waits"
    changed = "os.environ['OF_THIS_TEST'] = '1'; course.run_on_ranks(lambda: os.environ['OF_THIS_TEST'], 1)"
    assert kernel.run(f"{TORCH_ALONE}; import os; {changed}").shown[0]["text/plain"] == "['1']"
    assert kernel.staying() != [stays] and len(kernel.staying()) == 1 and not stays.is_running()


def test_what_has_left_a_ranks_session_ends_with_the_call(kernel):
    code = """
        def strays():
            import os, signal, time
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.setsid()
                if os.fork() == 0:
                    time.sleep(600)
                os._exit(0)
            os._exit(3)
        failure_of(strays);
    """
    assert "ended with exit code 3" in end(kernel.run(code))
    assert kernel.left() == []


@forks
def test_the_process_that_stays_is_replaced_when_it_is_gone(kernel):
    (stays,) = kernel.staying()
    stays.kill()
    wait_for(lambda: stays.status() == psutil.STATUS_ZOMBIE, "its end")
    assert kernel.run("course.run_on_ranks(lambda: 1, 2, engine='bare')").shown[0]["text/plain"] == "[1, 1]"


@forks
def test_an_interrupt_while_it_is_starting(kernel):
    """No process id is known yet."""
    code = """
        from bench.course import ranks
        while ranks.kept: ranks.kept.pop().stop()
        def interrupted(node, seconds): raise KeyboardInterrupt
        ranks.WarmNode.wait = interrupted
        course.run_on_ranks(lambda: 1, 2)
    """
    assert kernel.run(code).raised.startswith("KeyboardInterrupt")
    assert kernel.run("del ranks.WarmNode.wait").raised == "" and kernel.left() == []


@forks
def test_nobody_outlives_the_kernel(tmp_path):
    with Kernel(tmp_path) as kernel:
        code = "def wait():\n    import time\n    print('waiting')\n    time.sleep(600)\ncourse.run_on_ranks(wait, 2)"
        kernel.client.execute(f"from bench import course\n{TORCH_ALONE}\n{code}")
        wait_for(lambda: len(kernel.processes()) == 3 and ranks_run(kernel), "the ranks", within=100)
        stays = kernel.staying()
        os.kill(kernel.pid, 9)
        wait_for(lambda: kernel.processes() == [] and not stays[0].is_running(), "the end of all", within=30)


def ranks_run(kernel) -> bool:
    """Whether two of a kernel's ranks have begun to print."""
    return all("waiting" in path.read_text() for path in kernel.temporary.glob("ranks-*/rank*.log"))


@forks
def test_a_process_that_stays_ends_after_a_while():
    code = "from bench.course import start; start.IDLE_S = 0.5; start.preload = lambda modules: None; start.stay()"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        subprocess.run([sys.executable, "-c", code], stdin=theirs, timeout=60, check=True, cwd=ROOT)


def test_a_command_ends_with_its_kernel(tmp_path):
    with Kernel(tmp_path) as kernel:
        kernel.client.execute("from bench import course; course.shell('sleep 171')")
        wait_for(lambda: "sleep 171" in kernel.processes(), "the command")
        os.kill(kernel.pid, 9)
        wait_for(lambda: kernel.processes() == [], "the end of the command", within=30)


# --- Without a kernel -----------------------------------------------------------------------------------------------


def rank_of_two(code: int | None = None) -> str:
    if code is not None and os.environ["RANK"] == "1":
        os._exit(code)
    return os.environ["RANK"]


def test_ranks_as_fresh_programs(monkeypatch):
    """As where a fork is not safe: on macOS."""
    monkeypatch.setenv("BENCH_PROC", "/nowhere")
    assert run_on_ranks(rank_of_two, 2, engine="bare") == ["0", "1"]
    with pytest.raises(RunFailed, match=r"^rank 1 ended with exit code 7 before the function returned$"):
        run_on_ranks(rank_of_two, 2, 7, engine="bare")
    assert descendants(os.getpid()) == []


def test_a_rank_that_ends_well_without_a_result():
    with pytest.raises(RunFailed, match=r"^rank 1 ended before the function returned$") as caught:
        run_on_ranks(rank_of_two, 2, 0, engine="bare")
    assert caught.value.failure["rank"] == 1


def chatter() -> None:
    while True:
        print("x" * 2**20)


def test_a_rank_that_prints_without_end(monkeypatch, capsys):
    monkeypatch.setattr(ranks, "MOST_BYTES", 2**20)
    with pytest.raises(RunFailed, match=r"^rank 0 has printed more than 1 MiB, and was stopped$"):
        run_on_ranks(chatter, 1, engine="bare", quiet=True)
    assert capsys.readouterr().out == "" and descendants(os.getpid()) == []


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((0,), {}, "num_ranks=0: give a whole number from 1 to 64"),
        ((2.0,), {}, "num_ranks=2.0"),
        ((2,), {"engine": "mpi"}, "unknown engine='mpi': choose one of torch, bare, horovod"),
        ((2,), {"timeout": 0}, "timeout=0: give a number of seconds above 0"),
    ],
)
def test_a_call_that_cannot_work(arguments, options, words):
    with pytest.raises(UserError) as caught:
        run_on_ranks(rank_of_two, *arguments, **options)
    assert words in str(caught.value)


def test_how_a_rank_ended_is_told_for_every_rank(tmp_path):
    pids = iter([os.posix_spawn("/bin/sh", ["sh", "-c", "exit 0"], {}),
                 os.posix_spawn("/bin/sh", ["sh", "-c", "kill -11 $$"], {})])  # fmt: skip
    assert start.watch(lambda run_dir, rank: next(pids), tmp_path, 2) == 1
    assert ranks.how_it_ended(tmp_path, 1) == "rank 1 was killed by SIGSEGV"
    assert ranks.how_it_ended(tmp_path, 2) == ""


# --- Output, from logs written by hand ------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path):
    """A function that appends to rank 1's log, and the output that follows it."""
    followed = RankOutput(tmp_path, 2, files={"/tmp/ipykernel_7/12.py": "cell [3]"})

    def append(text: str) -> RankOutput:
        with (tmp_path / "rank1.log").open("a") as file:
            file.write(text)
        return followed

    return append


def test_a_line_is_shown_when_it_is_whole(log, capsys):
    log("a\nb").show()
    assert capsys.readouterr().out == "[rank 1] a\n"
    log("c\n").show()
    assert capsys.readouterr().out == "[rank 1] bc\n"
    log("d").finish()
    assert capsys.readouterr().out == "[rank 1] d\n"


def test_too_many_lines_are_cut(log, capsys):
    log("x\n" * (MOST_LINES + 100)).show()
    log("y\n").finish()
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == MOST_LINES + 1 and printed[-1].startswith(f"[rank 1] … more than {MOST_LINES} lines")


def test_a_wide_line_is_cut(log, capsys):
    log("x" * 10_000 + "\n").show()
    assert len(capsys.readouterr().out) < 2100


def test_cells_are_called_by_their_numbers(log, capsys):
    log('File "/tmp/ipykernel_7/12.py", line 1; at ipykernel_7/12.py:3 (f)\n').show()
    assert capsys.readouterr().out == '[rank 1] File "cell [3]", line 1; at cell [3]:3 (f)\n'
