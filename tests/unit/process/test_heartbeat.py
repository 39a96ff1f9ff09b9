"""bench/process: what a rank writes, its node reads; SIGTERM is an interrupt, and one in the wrong moment waits."""

import math
import os
import signal
import struct
import threading

import pytest

from bench.process import ending
from bench.process.heartbeat import LAYOUT, PHASES, StatusWriter, Window, read_status, status_path


def test_a_rank_that_has_not_begun_has_no_heartbeat(tmp_path):
    assert read_status(tmp_path, 0) is None
    for content in (b"", bytes(LAYOUT.size)):
        status_path(tmp_path, 0).write_bytes(content)
        assert read_status(tmp_path, 0) is None


def test_what_is_written_is_read(tmp_path):
    """Of each rank its own. Validating one batch after the other is progress, though phase and step stay."""
    writers = [StatusWriter(tmp_path, rank) for rank in range(3)]
    beat = read_status(tmp_path, 2)
    assert (beat.pid, beat.phase, beat.step, beat.total_steps) == (os.getpid(), "starting", 0, 0)
    assert math.isnan(beat.loss)
    for rank, writer in enumerate(writers):
        writer.total(100)
        writer.step(41 + rank)
        writer.loss(0.25)
    for beats, phase in enumerate([*PHASES, *["validating"] * 3], start=1):
        writers[1].phase(phase)
        beat = read_status(tmp_path, 1)
        assert (beat.pid, beat.phase, beat.step, beat.total_steps, beat.loss, beat.beats) == (
            os.getpid(), phase, 42, 100, 0.25, beats,
        )  # fmt: skip
    assert [read_status(tmp_path, rank).step for rank in range(3)] == [41, 42, 43]


def test_the_writers_offsets_are_the_layouts(tmp_path):
    """The writer packs single fields; the reader unpacks the whole: both must mean the same bytes."""
    writer = StatusWriter(tmp_path, 0)
    writer.phase(PHASES[2])
    writer.step(3)
    writer.total(4)
    writer.loss(5.0)
    writer.window(Window(6, 7.0, 8.0, 9.0, 10.0, 11, 12))
    fields = [os.getpid(), 2, 3, 4, 5.0, 1, 6, 7.0, 8.0, 9.0, 10.0, 11, 12]
    assert list(struct.unpack(LAYOUT.format, bytes(writer.map))) == fields
    writer.validated(13, 14, 15)
    assert list(struct.unpack(LAYOUT.format, bytes(writer.map))) == [*fields[:6], 13, *fields[7:11], 14, 15]


def test_phases_that_end_a_life_come_last():
    """The launcher finds the rank that is furthest behind by the order of phases."""
    assert PHASES[-3:] == ("done", "raised", "terminated")
    assert PHASES.index("waiting for data") < PHASES.index("forward") < PHASES.index("backward")


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
