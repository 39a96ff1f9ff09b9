"""bench/process/ending.py: SIGTERM is an interrupt, and one that comes in the wrong moment waits."""

import signal
import threading

import pytest

from bench.process import ending

TOLD = (signal.SIGTERM, signal.SIGHUP)


def test_being_told_to_end_is_an_interrupt_and_only_for_so_long():
    """In another thread signals stay as they are."""
    before = [signal.getsignal(number) for number in TOLD]
    for number in TOLD:
        with pytest.raises(KeyboardInterrupt), ending.signals_as_interrupt():
            signal.raise_signal(number)
    assert [signal.getsignal(number) for number in TOLD] == before
    seen = []

    def run():
        with ending.signals_as_interrupt():
            seen.extend(signal.getsignal(number) for number in TOLD)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == before


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
