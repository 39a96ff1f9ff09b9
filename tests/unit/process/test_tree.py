"""bench/process/tree.py: a command ends with all that it has started, politely, even if their parents have changed."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from bench.process import tree
from bench.process.guard import alive
from bench.process.tree import MARK, Tree
from tests.runs import ROOT, wait_for

SLEEP = "import time; time.sleep(60)"
POLITE = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('goodbye'))); print(flush=True); "
POLITE += SLEEP
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); " + SLEEP

# A parent with a child; it prints the child's process id. own: the child gets its own session; bare: it has no
# environment; leave: the parent ends immediately.
FAMILY = f"""
import subprocess, sys, time
environment = {{}} if "bare" in sys.argv else None
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session="own" in sys.argv, env=environment)
print(child.pid, flush=True)
if "leave" not in sys.argv: time.sleep(60)
"""

# Starts one more process, in its own session, in the moment in which it is ended.
LAST_CHILD = f"""
import signal, subprocess, sys, time
def more(*_): sys.exit(subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True) and 0)
signal.signal(signal.SIGTERM, more)
print(flush=True)
time.sleep(60)
"""

# A tree within a tree: a separate command, whose child leaves for another session. It prints the ids of both.
NESTED = f"""
import sys
from bench.process import tree
tree.run([sys.executable, "-c", {FAMILY!r}, "own"], on_line=lambda line: print(line, end="", flush=True))
"""


@pytest.fixture
def started():
    """Starts Python code as a tree; what is left of it ends with the test. Its first line is waited for."""
    found = []

    def start(code: str, *words: str, **how) -> tuple[Tree, str]:
        found.append(Tree(grace_s=0.5))
        found[-1].start([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True, **how)
        return found[-1], found[-1].process.stdout.readline().strip()

    yield start
    for each in found:
        with each:
            pass


def carriers(token: str) -> list[int]:
    """The processes that carry a token, as /proc or the system shows it."""
    return [each.pid for each in psutil.process_iter(["environ"])
            if token in (each.info["environ"] or {}).get(MARK, "").split()]  # fmt: skip


# What starts processes without a tree, and why.
WITHOUT = {
    "process/tree.py": "the tree itself",
    "cluster/make.py": "the first process of a PID namespace: its end is the end of all others",
    "launch/engines/horovod_elastic.py": "a launcher, within a node's tree",
    "launch/engines/horovod_ranks.py": "a launcher, within a node's tree",
    "course/node_ranks.py": "ranks on the nodes of a cluster, which end with its first process",
    "course/start.py": "forks ranks, within a node's tree",
    "cli/notebooks.py": "what was started with nohup in its terminals stays",
    "config/hosts.py": "scontrol, which starts nothing, with a limit",
    "measure/environment.py": "tools that start nothing, with a limit",
    "measure/nccl.py": "one import, with a limit",
}
STARTS = re.compile(
    r"subprocess\.(Popen|run|call|check_call|check_output)\(|os\.(fork|forkpty|system|popen|posix_spawn)\("
)


def test_nothing_else_starts_processes():
    files = [path for path in (ROOT / "bench").rglob("*.py") if STARTS.search(path.read_text())]
    assert {path.relative_to(ROOT / "bench").as_posix() for path in files} == set(WITHOUT)


@pytest.mark.parametrize("name", ["pidfd_open", "that is not there"])
def test_a_process_and_its_descendants(started, monkeypatch, name):
    monkeypatch.delattr(os, name, raising=False)
    parent, child = started(FAMILY)
    assert (parent.pidfd is None) == (not hasattr(os, "pidfd_open"))  # then it is polled
    assert [each.pid for each in tree.with_descendants(parent.process.pid)] == [parent.process.pid, int(child)]
    tree.terminate(tree.with_descendants(parent.process.pid))
    assert parent.wait(10) == -signal.SIGTERM and tree.with_descendants(parent.process.pid) == []
    assert not alive(int(child))


@pytest.mark.parametrize("words", [("own", "bare"), ("own", "leave"), ("bare", "leave")], ids=" ".join)
def test_every_process_ends_wherever_it_went(started, words):
    """Only its parent, its mark or its session tells that it belongs to the tree."""
    parent, child = started(FAMILY, *words)
    assert alive(int(child))
    if "leave" in words:
        assert parent.wait(10) == 0
    parent.end()
    assert not alive(int(child)) and parent.members() == []
    parent.end()  # twice does no harm


def test_an_outer_tree_ends_the_inner_one_and_not_the_other_way_round(started):
    """There is one mark, which holds the tokens of both."""
    outer, stray = started(NESTED, cwd=ROOT)
    inner = tree.environment(psutil.Process(int(stray)))[MARK].split()
    assert outer.token in inner and len(inner) == len(os.environ.get(MARK, "").split()) + 2
    assert [name for name, value in psutil.Process(int(stray)).environ().items() if outer.token in value] == [MARK]
    os.kill(psutil.Process(int(stray)).ppid(), signal.SIGKILL)  # the inner command: its tree ends, and with it all
    assert outer.wait(30) == 0 and not alive(int(stray))
    outer, stray = started(NESTED, cwd=ROOT)
    other, _ = started(POLITE)
    outer.end()
    assert carriers(outer.token) == [] and not alive(int(stray)) and other.wait(0) is None


def test_a_process_that_ends_its_own_tree_is_not_among_them():
    code = "from bench.process.tree import Tree; tree = Tree(); tree.token = 'mine'; print(tree.members())"
    words = [sys.executable, "-c", code]
    assert subprocess.check_output(words, text=True, cwd=ROOT, env={**os.environ, MARK: "mine"}).strip() == "[]"


def test_a_process_that_starts_a_program_is_asked_again(monkeypatch):
    """The kernel shows no variables and no arguments between the end of the old program and the begin of the new, which
    may also come after a look at its variables and before that at its arguments."""
    answers, arguments = [{}, {}, {MARK: "mine"}], [[], ["sleep", "60"]]
    monkeypatch.setattr(psutil.Process, "environ", lambda process: answers.pop(0))
    monkeypatch.setattr(psutil.Process, "cmdline", lambda process: arguments.pop(0))
    assert tree.environment(psutil.Process()) == {MARK: "mine"}
    answers, arguments = [{}, {}, {MARK: "mine"}], [["sleep", "60"]]
    assert tree.environment(psutil.Process()) == {}  # it has arguments: it was started without variables


def test_what_does_not_end_when_told_to_is_killed(started):
    """And what does has time to say goodbye, and is not waited for. A wait has a limit."""
    polite, _ = started(POLITE)
    stubborn, _ = started(STUBBORN)
    begun = time.monotonic()
    assert stubborn.wait(0.3) is None and 0.3 <= time.monotonic() - begun < 5
    polite.grace_s = 30
    polite.end()
    assert polite.process.stdout.read() == "goodbye\n" and time.monotonic() - begun < 15
    stubborn.end()
    assert stubborn.wait(0) == -signal.SIGKILL


def test_a_command_may_have_time_to_end_the_rest_by_itself(started):
    parent, child = started(f"""
import signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True)
def end(*_):
    time.sleep(0.3)
    print("still there" if child.poll() is None else "gone", flush=True)
    sys.exit(child.kill())
signal.signal(signal.SIGTERM, end)
print(child.pid, flush=True)
time.sleep(60)
""")
    parent.alone_s = 30
    parent.end()
    assert parent.process.stdout.read() == "still there\n" and not alive(int(child))


def test_what_is_started_while_its_parent_is_ended_ends_too(started):
    parent, _ = started(LAST_CHILD)
    parent.grace_s = 5
    parent.end()
    assert (carriers(parent.token), parent.wait(0)) == ([], 0)


def test_without_psutil_the_process_group_ends(tmp_path):
    """As where bench/install runs on a bare Python: -S hides every installed package."""
    code = f"""
        import sys
        from bench.process.tree import Tree
        tree = Tree(grace_s=0.5)
        tree.start([sys.executable, "-S", "-c", {FAMILY!r}], stdout=open({str(tmp_path / "child")!r}, "w"))
        tree.wait(1)
        tree.end()
        print(tree.wait(0), "psutil" in sys.modules)
    """
    words = [sys.executable, "-S", "-c", textwrap.dedent(code)]
    assert subprocess.check_output(words, text=True, cwd=ROOT, timeout=60).split() == ["-15", "False"]
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not alive(child), "the child has ended")


def test_the_exit_code_and_what_was_printed():
    code = "import sys; print('a'); print('b', file=sys.stderr); print(sys.stdin.read(), end=''); sys.exit(3)"
    assert tree.capture([sys.executable, "-c", code], 60, "given") == (3, "a\ngiven", "b\n")
    assert tree.run(["sh", "-c", "kill -9 $$"]) == -signal.SIGKILL


def test_lines_come_one_by_one_and_what_is_left_behind_is_not_waited_for():
    lines, began = [], time.monotonic()
    program = "printf 'one\\r\\ntwo\\rthr'; (setsid sleep 60; echo late) & sleep 60 & printf 'ee\\303'"
    assert tree.run(["sh", "-c", program], 50, lines.append) == 0
    assert lines == ["one\n", "two\n", "three\ufffd"] and time.monotonic() - began < 30


def test_after_the_limit_nothing_is_left_and_the_last_words_are_read():
    lines = []
    code = f"import os; print(os.environ[{MARK!r}], os.getpid(), flush=True)\n" + POLITE
    assert tree.run([sys.executable, "-c", code], 2, lines.append, alone_s=20) is None
    token, pid = lines[0].split()[-2:]
    assert lines[-1] == "goodbye\n" and carriers(token) == [] and not alive(int(pid))


def test_an_exception_of_the_callback_ends_the_tree():
    lines = []

    def refuse(line: str):
        lines.append(line)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tree.run([sys.executable, "-c", FAMILY, "own"], 60, refuse)
    assert len(lines) == 1 and not alive(int(lines[0]))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_process_that_runs_it_is_told_to_end_or_killed(number):
    """SIGKILL: the tree is tied to it. SIGHUP and SIGTERM are one thing (test_heartbeat.py)."""
    code = NESTED.replace("on_line", f"tied={number == signal.SIGKILL}, on_line") + "print('not reached')"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
                          text=True) as process:  # fmt: skip
        stray = int(process.stdout.readline())
        token = tree.environment(psutil.Process(stray))[MARK].split()[-1]
        process.send_signal(number)
        process.wait(60)
        wait_for(lambda: carriers(token) == [], "the tree has ended", 30)
        assert not alive(stray) and process.stdout.read() == ""


class InterruptedOnceTaken:
    """A lock at whose taking Ctrl-C comes: taken, and nobody in a ``try`` yet that gives it back."""

    def __init__(self, lock):
        self.lock, self.release = lock, lock.release

    def acquire(self, blocking: bool = True) -> bool:
        taken = self.lock.acquire(blocking)
        signal.raise_signal(signal.SIGINT)
        return taken


def test_an_interrupt_in_the_worst_moment_does_not_hide_the_end(started):
    one, _ = started("print(flush=True)")
    lock = one.process._waitpid_lock
    one.process._waitpid_lock = InterruptedOnceTaken(lock)
    with pytest.raises(KeyboardInterrupt):
        one.wait(10)
    one.process._waitpid_lock = lock
    assert one.wait(10) == 0


def test_an_interrupt_while_the_command_is_started_leaves_nobody(monkeypatch):
    popen, made = subprocess.Popen, []

    def interrupted(*arguments, **options):
        made.append(popen(*arguments, **options))
        signal.raise_signal(signal.SIGINT)
        return made[-1]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tree.run(["sleep", "60"])
    assert made[0].returncode == -signal.SIGTERM
