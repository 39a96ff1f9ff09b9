"""bench/launch/supervise.py: the limit on progress, with made-up heartbeats; with real ranks: test_hangs.py."""

import time

import pytest

from bench.launch import supervise
from bench.launch.placement import Placement
from bench.process.heartbeat import Heartbeat

TICK_S = 0.05


class Scripted:
    """A node of one rank. beats: for each look its phase and how often it has shown progress; the last one stays, and
    its command ends after ``looks``. away_s: for how long the supervising process is stopped at the third look."""

    placement = Placement(range(1))

    def __init__(self, beats: list[tuple[str, int]], looks: int, away_s: float = 0.0):
        self.beats, self.looks, self.away_s, self.asked = beats, looks, away_s, 0

    def wait(self, seconds: float) -> int | None:
        assert seconds <= supervise.TICK_S
        self.asked += 1
        time.sleep(self.away_s if self.asked == 3 and self.away_s else TICK_S)
        return 0 if self.asked == self.looks else None

    def heartbeats(self) -> list[Heartbeat]:
        phase, beats = self.beats[min(self.asked, len(self.beats)) - 1]
        return [Heartbeat(1, phase, 3, 9, 0.5, beats=beats)]

    def lost_reason(self) -> str:
        return ""

    def epochs(self) -> list[dict]:
        return []


GOES_ON, STILL = [("validating", n) for n in range(10)], [("validating", 7)]
JOINING = [("joining the group", 1)]
# What the rank does, after how many looks it ends, for how long `bench` is stopped, TIMEOUT, the time that a rank has
# to join; and whether it hangs.
LIMITS = {
    "goes on for longer than TIMEOUT": (GOES_ON, 10, 0.0, 0.2, 0.0, False),
    "stands still": (GOES_ON + STILL, 1000, 0.0, 0.2, 0.0, True),
    "joins late": (JOINING, 6, 0.0, 0.1, 600.0, False),
    "joins too late": (JOINING, 1000, 0.0, 0.1, 0.0, True),
    "stands still when all have joined": (JOINING + STILL, 1000, 0.0, 0.1, 600.0, True),
    "bench is stopped": (STILL, 4, 1.2, 1.0, 0.0, False),
}


@pytest.mark.parametrize("name", LIMITS)
def test_which_time_without_progress_is_a_hang(name, tmp_path, monkeypatch):
    beats, looks, away_s, timeout, starting, hangs = LIMITS[name]
    monkeypatch.setattr(supervise, "MOST_S", 0.1 if away_s else supervise.MOST_S)
    monkeypatch.setattr(supervise, "describe_hang", lambda *_: "hung")
    found = supervise.wait([Scripted(beats, looks, away_s)], tmp_path, timeout, None, starting)
    assert found == ("hung" if hangs else None)
