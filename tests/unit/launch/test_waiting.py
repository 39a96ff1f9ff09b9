"""bench/launch/supervise.py: the limit on progress, where no process is needed to see it."""

import time

from bench.launch import supervise
from bench.launch.placement import Placement
from bench.process.heartbeat import Heartbeat

LIMIT_S = 1.0
BEATS = [Heartbeat(1, "validating", 3, 9, 0.5, beats=7)]  # it goes on, and says nothing new


class Quiet:
    """A node whose rank is in a long phase. away_s: for how long the supervising process is stopped meanwhile."""

    placement = Placement(range(1))

    def __init__(self, away_s: float):
        self.away_s, self.asked = away_s, 0

    def wait(self, seconds: float) -> int | None:
        self.asked += 1
        if self.asked == 3:
            time.sleep(self.away_s)
        return 0 if self.asked == 6 else None

    def heartbeats(self) -> list[Heartbeat]:
        return BEATS

    def lost(self) -> str:
        return ""

    def epochs(self) -> list[dict]:
        return []


def test_time_in_which_bench_itself_was_stopped_is_no_ranks_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "MOST_S", 0.1)
    monkeypatch.setattr(supervise, "hung", lambda *_: "hung")
    assert supervise.wait([Quiet(1.5 * LIMIT_S)], tmp_path, LIMIT_S, None, 0.0) is None


def test_time_that_bench_has_seen_pass_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "hung", lambda *_: "hung")
    assert supervise.wait([Quiet(1.5 * LIMIT_S)], tmp_path, LIMIT_S, None, 0.0) == "hung"
