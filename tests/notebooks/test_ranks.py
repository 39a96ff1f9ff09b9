"""Functions of a notebook on ranks: real kernels, real processes. One kernel and one launch serve many tests."""

import ast
import os
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from bench.course import ranks, start
from bench.course.chapters import kernel_sockets
from bench.course.ranks import MOST_LINES, RankOutput, run_on_ranks
from bench.course.shell import own_paths
from bench.errors import RunFailed
from bench.files import LINUX
from bench.process.tree import MARK, Tree
from tests.runs import PATIENT, ROOT, descendants, needs_horovod, refuses, wait_for

client = pytest.importorskip("jupyter_client", reason="the notebooks extra is not installed")

LIMIT_S = 200  # for one cell, on a busy machine
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
}
FAILING = {  # what the error names, cell
    "raises": (["rank 1", "ValueError: no 7", "line 4, in broken"], """
        def broken(x):
            if dist.get_rank() == 1:
                print("just before")
                raise ValueError(f"no {x}")
            dist.barrier()
        failure_of(broken, 7)
    """),
    "raises, quietly": (["rank 1", "ValueError: no 7", "line 4, in broken"], """
        failure_of(broken, 7, quiet=True);
    """),
    "hangs": (["rank 1", "3 s", ":4 (stuck)", ":6 (stuck)"], """
        def stuck():
            print("here", flush=True)
            if dist.get_rank() == 0:
                dist.barrier()
            import time
            time.sleep(100)
        failure_of(stuck, timeout=3);
    """),
    "strays": (["rank 1", "code 5"], """
        def strays():
            import os, signal, time
            if dist.get_rank() == 0:
                dist.barrier()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.setsid()
                if os.fork() == 0:
                    time.sleep(600)
                os._exit(0)
            os._exit(5)
        failure_of(strays);
    """),
    "killed": (["rank 0", "SIGKILL"], """
        def killed():
            import os, signal
            if dist.get_rank() == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.barrier()
        failure_of(killed);
    """),
    "result": (["generator"], """
        failure_of(lambda: (x for x in [1]));
    """),
    "function": (["_thread.lock"], """
        import threading
        lock = threading.Lock()
        failure_of(lambda: lock);
    """),
}  # fmt: skip


@dataclass
class Said:
    printed: str = ""
    shown: list[dict] = field(default_factory=list)  # by kind of text, as in a notebook
    raised: str = ""  # "ValueError: no"


class Kernel:
    """As the chapters run in. Its temporary files lie in a separate folder. Use as a context manager."""

    def __init__(self, folder: Path):
        self.tree = Tree()
        self.temporary = folder / "tmp"
        self.temporary.mkdir()

    def __enter__(self) -> "Kernel":
        variables = {"PYTHONPATH": own_paths()["PYTHONPATH"], "TMPDIR": str(self.temporary),
                     "PYDEVD_DISABLE_FILE_VALIDATION": "1"}  # fmt: skip
        environment = os.environ | PATIENT | variables | self.tree.mark
        self.manager = client.KernelManager(**kernel_sockets())
        self.manager.start_kernel(env=environment)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(LIMIT_S)
        self.pid = self.manager.provisioner.pid
        return self

    def __exit__(self, *_) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()

    def run(self, code: str, *do_when: tuple) -> Said:
        """Run one cell to its end. do_when: (a text that it prints, a function to call then)."""
        said, waiting = Said(), [*do_when]

        def hear(message: dict) -> None:
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                said.printed += content["text"]
                if waiting and waiting[0][0] in said.printed:
                    waiting.pop()[1]()
            elif kind in ("display_data", "execute_result"):
                said.shown.append(content["data"])
            elif kind == "error":
                said.raised = f"{content['ename']}: {content['evalue']}"

        self.client.execute_interactive(textwrap.dedent(code).strip(), output_hook=hear, timeout=LIMIT_S)
        return said

    def processes(self) -> list[str]:
        """The command lines of all that this kernel has started; neither itself nor the process that stays to fork
        ranks is among them."""
        own = {self.pid, *(process.pid for process in self.staying())}
        others = [each for each in psutil.process_iter(["environ", "cmdline"]) if each.pid not in own]
        marked = [each for each in others if self.tree.token in (each.info["environ"] or {}).get(MARK, "").split()]
        return [" ".join(each.info["cmdline"] or ["an ended one"]) for each in marked]

    def staying(self) -> list[psutil.Process]:
        """The processes that stay, of this kernel's own children: one, or none. Ranks have the same command line."""
        children = [each for each in psutil.process_iter(["ppid", "cmdline"]) if each.info["ppid"] == self.pid]
        return [each for each in children if (each.info["cmdline"] or [])[-2:] == ["-m", "bench.course.start"]]

    def left(self) -> list[str]:
        """Processes and temporary files that are left, after a while. torch leaves a folder, with any optimizer."""
        for _ in range(50):
            files = [str(path) for path in self.temporary.iterdir() if not path.name.startswith("torchinductor_")]
            if not (left := [*self.processes(), *files]):
                break
            time.sleep(0.2)
        return left


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    with Kernel(tmp_path_factory.mktemp("kernel")) as found:
        assert found.run(SETUP).raised == ""
        yield found


@pytest.fixture(scope="module")
def said(kernel):
    """What each cell said; cell n of the notebook is the n-th here, plus one for the setup."""
    cells = CELLS | {name: code for name, (_, code) in FAILING.items()}
    return {name: kernel.run(code) for name, code in cells.items()}


def lines(said) -> list[str]:
    return said.printed.splitlines()


def end(said) -> str:
    assert said.raised == ""
    return next(line for line in lines(said) if line.startswith("END "))


def test_results_come_back_by_rank_and_in_the_classes_of_the_notebook(said):
    """Every line names its rank."""
    assert said["torch"].raised == ""
    assert said["torch"].shown[0]["text/plain"] == "([True, True], [0, 1], [[9.0, 9.0], [9.0, 9.0]])"
    for rank in (0, 1):
        mine = [line for line in lines(said["torch"]) if line.startswith(f"[rank {rank}]")]
        assert mine == [f"[rank {rank}] total [9.0, 9.0]", f"[rank {rank}]", f"[rank {rank}] no end"]
    assert len(lines(said["torch"])) == 6


def test_bare_ranks_have_the_variables_and_no_group(said):
    assert " ".join(said["bare"].shown[0]["text/plain"].split()) == (
        "(['0', '0', '2', '127.0.0.1'], ['1', '1', '2', '127.0.0.1'], False, False, True)"
    ), "then: NumPy's random numbers are not the same on both; a rank ends with this kernel"


@pytest.mark.parametrize("name", FAILING)
def test_a_failure_names_what_went_wrong(said, name):
    assert [value for value in FAILING[name][0] if value not in end(said[name])] == [], end(said[name])
    if name in ("raises", "hangs"):
        assert f"cell [{list(said).index(name) + 2}]" in end(said[name])
    if name in ("raises, quietly", "hangs"):  # no traceback, no stacks
        assert sorted(lines(said[name])[:-1]) == (["[rank 0] here", "[rank 1] here"] if name == "hangs" else [])


def test_failures_leave_nobody(kernel, said):
    """What has left a rank's session ends with the call, too."""
    assert kernel.left() == []


def test_an_exception_is_shown_with_its_rank_and_line_and_the_others_end_in_one(said):
    cell, printed = f"cell [{list(said).index('raises') + 2}]", lines(said["raises"])
    trace = printed.index("[rank 1] Traceback (most recent call last):")
    assert "[rank 1] just before" in printed[:trace]
    assert printed[trace + 1] == f'[rank 1]   File "{cell}", line 4, in broken'
    assert printed[trace + 2].strip().endswith('raise ValueError(f"no {x}")')
    (other,) = [line for line in printed if line.startswith("[rank 0]")]
    assert printed.index(other) > printed.index("[rank 1] ValueError: no 7") > trace
    assert len(other) < 140 and "/pair.cc" not in other
    failure = said["raises"].shown[0]["text/plain"]
    assert "'rank': 1" in failure and "'kind': 'raised'" in failure and cell in failure
    assert "ipykernel_" not in said["raises"].printed + failure and "bench/course/start.py" not in failure


@needs_horovod
def test_horovod(kernel):
    """That its results come back is shown by chapter 6. Its launcher and ranks are copies here."""
    code = """
        import os, sys
        fresh, sys.executable = sys.executable, os.environ.get("TESTS_PYTHON_OF_CHAPTERS", sys.executable)
        def broken_sum():
            import horovod.torch as hvd
            print("sum", hvd.allreduce(torch.ones(1) * hvd.rank(), op=hvd.Sum).item(), flush=True)
            if hvd.rank() == 1:
                raise ValueError("no")
            hvd.allreduce(torch.ones(1))
        failure_of(broken_sum, engine="horovod"); sys.executable = fresh
    """
    said = kernel.run(code)
    assert "rank 1" in end(said) and "ValueError: no" in end(said) and "cell [" in end(said)
    assert {"[rank 0] sum 1.0", "[rank 1] sum 1.0"} < {*lines(said)}
    assert len([line for line in lines(said) if line.startswith("[rank 0]")]) == 2
    assert kernel.left() == []


def test_an_interrupt_of_the_kernel_ends_the_ranks(kernel):
    code = """
        def wait():
            import time
            print("waiting")
            time.sleep(100)
        course.run_on_ranks(wait, 2)
    """
    assert kernel.run(code, ("waiting", kernel.manager.interrupt_kernel)).raised.startswith("KeyboardInterrupt")
    assert kernel.left() == []


forks = pytest.mark.skipif(not LINUX, reason="a fork is safe on Linux alone")

# As where there are GPUs: the process that stays imports torch, and no more. It starts in half the time.
TORCH_ALONE = "from bench.course import ranks; ranks.visible_gpus = lambda: ['a GPU']"


@forks
def test_ranks_of_later_calls_are_forked_from_one_process(kernel):
    """Which is another one when it is gone, or when a variable has changed that a library may have read while it was
    loaded."""
    (stays,) = kernel.staying()
    family = """
        def family():
            import psutil
            return [process.pid for process in psutil.Process().parents()]
        course.run_on_ranks(family, 2, engine="bare")
    """
    ranks = ast.literal_eval(kernel.run(family).shown[0]["text/plain"])
    assert [family[1:3] for family in ranks] == [[stays.pid, kernel.pid]] * 2, "the second is who starts and waits"
    changed = "os.environ['OF_THIS_TEST'] = '1'; course.run_on_ranks(lambda: os.environ['OF_THIS_TEST'], 1)"
    assert kernel.run(f"{TORCH_ALONE}; import os; {changed}").shown[0]["text/plain"] == "['1']"
    (other,) = kernel.staying()
    assert other != stays and not stays.is_running()
    other.kill()
    wait_for(lambda: other.status() == psutil.STATUS_ZOMBIE, "its end")
    assert kernel.run("course.run_on_ranks(lambda: 1, 2, engine='bare')").shown[0]["text/plain"] == "[1, 1]"
    code = """
        from bench.course import ranks
        while ranks.kept: ranks.kept.pop().stop()
        def interrupted(node, seconds): raise KeyboardInterrupt
        ranks.WarmNode.wait = interrupted
        course.run_on_ranks(lambda: 1, 2)
    """  # an interrupt while it is starting: no process id is known yet
    assert kernel.run(code).raised.startswith("KeyboardInterrupt")
    assert kernel.run("del ranks.WarmNode.wait").raised == "" and kernel.left() == []


@forks
def test_nobody_outlives_the_kernel(tmp_path):
    """Neither its ranks nor a command."""
    with Kernel(tmp_path) as kernel:
        assert not {*kernel.manager.ports} & {each.laddr.port for each in psutil.net_connections("inet") if each.laddr}
        code = "def wait():\n    import time\n    print('waiting')\n    time.sleep(600)\n"
        code += "import threading\nthreading.Thread(target=course.shell, args=('sleep 171',)).start()\n"
        kernel.client.execute(f"from bench import course\n{TORCH_ALONE}\n{code}course.run_on_ranks(wait, 2)")
        wait_for(lambda: "sleep 171" in kernel.processes(), "the command", within=100)
        logs = kernel.temporary.glob
        wait_for(lambda: sum("waiting" in path.read_text() for path in logs("ranks-*/rank*.log")) == 2, "the ranks")
        stays = kernel.staying()
        os.kill(kernel.pid, 9)
        wait_for(lambda: kernel.processes() == [] and not stays[0].is_running(), "the end of all", within=30)


@forks
def test_a_process_that_stays_ends_after_a_while():
    code = (
        "from bench.course import start; start.IDLE_S = 0.5; start.preload = lambda modules: None; start.serve_calls()"
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        subprocess.run([sys.executable, "-c", code], stdin=theirs, timeout=60, check=True, cwd=ROOT)


def rank_of_two(code: int | None = None) -> str:
    if code is not None and os.environ["RANK"] == "1":
        os._exit(code)
    return os.environ["RANK"]


def test_ranks_as_new_programs(monkeypatch, tmp_path, copied_python):
    """As where a fork is not safe: on macOS. How a rank has ended is reported for every rank."""
    monkeypatch.setenv("BENCH_PROC", "/nowhere")
    assert run_on_ranks(rank_of_two, 2, engine="bare") == ["0", "1"]
    for code in (7, 0):  # one that ends well has no result, either
        with refuses("rank 1", *(["code 7"] if code else []), error=RunFailed) as caught:
            run_on_ranks(rank_of_two, 2, code, engine="bare")
        assert caught.value.failure["rank"] == 1
    assert descendants(os.getpid()) == []
    pids = iter([os.posix_spawn("/bin/sh", ["sh", "-c", "exit 0"], {}),
                 os.posix_spawn("/bin/sh", ["sh", "-c", "kill -11 $$"], {})])  # fmt: skip
    assert start.watch(lambda run_dir, rank: next(pids), tmp_path, 2) == 1
    assert "rank 1" in ranks.how_it_ended(tmp_path, 1) and "SIGSEGV" in ranks.how_it_ended(tmp_path, 1)
    assert ranks.how_it_ended(tmp_path, 2) == ""


def chatter() -> None:
    while True:
        print("x" * 2**20)


def test_a_rank_that_prints_without_end(monkeypatch, capsys, copied_python):
    monkeypatch.setattr(ranks, "MOST_BYTES", 2**20)
    with refuses("rank 0", "1 MiB", error=RunFailed):
        run_on_ranks(chatter, 1, engine="bare", quiet=True)
    assert capsys.readouterr().out == "" and descendants(os.getpid()) == []


@pytest.mark.parametrize(
    ("num_ranks", "options", "value"),
    [
        (0, {}, "num_ranks=0"),
        (2.0, {}, "num_ranks=2.0"),
        (2, {"engine": "mpi"}, "engine='mpi'"),
        (2, {"timeout": 0}, "timeout=0"),
    ],
)
def test_a_call_that_cannot_work(num_ranks, options, value):
    with refuses(value):
        run_on_ranks(rank_of_two, num_ranks, **options)


def test_lines_of_a_rank(tmp_path, capsys):
    """Shown when they are whole; cells are called by their numbers; a wide line is cut, and so are too many."""
    followed = RankOutput(tmp_path, 2, files={"/tmp/ipykernel_7/12.py": "cell [3]"})

    def shown(text: str, show=followed.show) -> str:
        with (tmp_path / "rank1.log").open("a") as file:
            file.write(text)
        show()
        return capsys.readouterr().out

    assert shown("a\nb") == "[rank 1] a\n" and shown("c\n") == "[rank 1] bc\n"
    frame = shown('File "/tmp/ipykernel_7/12.py", line 1; at ipykernel_7/12.py:3 (f)\n')
    assert frame == '[rank 1] File "cell [3]", line 1; at cell [3]:3 (f)\n'
    assert len(shown("x" * 10_000 + "\n")) < 2100
    printed = (shown("x\n" * (MOST_LINES + 100)) + shown("y", followed.finish)).splitlines()
    assert len(printed) == MOST_LINES - 4 + 1 and str(MOST_LINES) in printed[-1]
