"""bench/process/ending.py: whole process trees end, politely first, whoever their parents are by now."""

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from bench.process import ending
from bench.process.guard import alive

SLEEP = "import time; time.sleep(60)"
POLITE = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('goodbye'))); print(flush=True); "
POLITE += SLEEP
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); " + SLEEP
MARK = "BENCH_TEST_MARK"

# A parent with a child; it prints the child's process id. own: the child gets a session of its own.
FAMILY = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session="own" in sys.argv)
print(child.pid, flush=True)
if "leave" not in sys.argv: time.sleep(60)
"""


# Starts one more process, in a session of its own, in the moment in which it is ended.
LAST_CHILD = f"""
import signal, subprocess, sys, time
def more(*_): sys.exit(subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True) and 0)
signal.signal(signal.SIGTERM, more)
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def started():
    """Starts Python code as a process; what is left of it ends with the test. Its first line is waited for."""
    found = []

    def start(code: str, *words: str, environment: dict | None = None) -> tuple[subprocess.Popen, str]:
        found.append(
            subprocess.Popen(
                [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True, start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        )  # fmt: skip
        return found[-1], found[-1].stdout.readline().strip()

    yield start
    for process in found:
        ending.end_session(process, grace_s=0)
        process.stdout.close()


def test_a_tree_is_a_process_and_its_descendants(started):
    parent, child = started(FAMILY)
    assert [process.pid for process in ending.tree(parent.pid)] == [parent.pid, int(child)]
    ending.end(ending.tree(parent.pid))
    parent.wait()
    assert not alive(int(child)) and ending.tree(parent.pid) == []


def test_what_does_not_end_when_told_to_is_killed(started):
    """And what does has time to say goodbye, and is not waited for."""
    polite, _ = started(POLITE)
    stubborn, _ = started(STUBBORN)
    begun = time.monotonic()
    ending.end([psutil.Process(polite.pid)], grace_s=30)
    assert polite.stdout.read() == "goodbye\n" and time.monotonic() - begun < 15
    ending.end([psutil.Process(stubborn.pid)], grace_s=0.3)
    assert not alive(stubborn.pid)


def test_what_has_ended_meanwhile_does_no_harm(started):
    process, _ = started("print(flush=True)")
    handle = psutil.Process(process.pid)
    process.wait()
    ending.end([handle])


def test_who_has_left_its_family_is_found_by_its_mark(started):
    parent, child = started(FAMILY, "own", "leave", environment={MARK: "a-run another"})
    parent.wait()
    try:
        assert [process.pid for process in ending.marked(MARK, "a-run")] == [int(child)]
        assert ending.marked(MARK, "a-ru") == []
    finally:
        ending.end_marked(MARK, "another")
    assert not alive(int(child))


def test_what_is_started_while_its_parent_is_ended_ends_too(started):
    parent, _ = started(LAST_CHILD, environment={MARK: "a-run"})
    ending.end_marked(MARK, "a-run")
    left = ending.marked(MARK, "a-run")
    ending.end(left)
    assert (left, parent.wait()) == ([], 0)


def test_a_process_never_finds_itself_by_a_mark(monkeypatch):
    monkeypatch.setenv(MARK, "mine")
    code = f"import os; from bench.process import ending; print(ending.marked({MARK!r}, 'mine'))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("code", [FAMILY, FAMILY.replace("if ", STUBBORN + "\nif ")], ids=["polite", "stubborn"])
def test_a_session_ends_with_all_that_is_in_it(started, code):
    parent, child = started(code)
    ending.end_session(parent, grace_s=0.5)
    assert parent.returncode is not None
    deadline = time.monotonic() + 10
    while alive(int(child)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(int(child))
    ending.end_session(parent)  # twice does no harm


def test_being_told_to_end_is_an_interrupt_and_only_for_so_long():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    for number in (signal.SIGTERM, signal.SIGHUP):
        with pytest.raises(KeyboardInterrupt), ending.signals_as_interrupt():
            signal.raise_signal(number)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before


def test_an_ignored_signal_stays_ignored_so_that_nohup_holds():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending.signals_as_interrupt(), ending.uninterrupted():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interrupt_waits_for_the_end_of_all_that_must_not_be_interrupted():
    done = []
    with pytest.raises(KeyboardInterrupt), ending.uninterrupted():
        with ending.uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]


class InterruptedOnceTaken:
    """A lock at whose taking Ctrl-C comes: taken, and nobody in a ``try`` yet that gives it back."""

    def __init__(self, lock):
        self.lock, self.release = lock, lock.release

    def acquire(self, blocking: bool = True) -> bool:
        taken = self.lock.acquire(blocking)
        signal.raise_signal(signal.SIGINT)
        return taken


def test_an_interrupt_in_the_worst_moment_does_not_hide_the_end(started):
    process, _ = started("print(flush=True)")
    lock = process._waitpid_lock
    process._waitpid_lock = InterruptedOnceTaken(lock)
    with pytest.raises(KeyboardInterrupt):
        ending.wait(process, 10)
    process._waitpid_lock = lock
    assert ending.wait(process, 10) == 0


def test_a_wait_has_a_limit(started):
    process, _ = started(SLEEP.replace(";", "; print(flush=True);"))
    began = time.monotonic()
    assert ending.wait(process, 0.3) is None and 0.3 <= time.monotonic() - began < 5
    process.kill()
    assert ending.wait(process, 10) == -signal.SIGKILL


def test_in_another_thread_signals_stay_as_they_are():
    seen = []

    def run():
        with ending.signals_as_interrupt():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
