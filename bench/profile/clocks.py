"""The timelines of all ranks on one clock. Imports no torch."""

import itertools


def join_timelines(parts: list[dict]) -> None:
    """On rank 0, with all ranks' samples: replace each timeline's clock by start_s, when its step began, in seconds
    after the first rank's, and by clock_error_s, the largest error of that. Horovod's spans are copied to all ranks."""
    timelines = [part["timeline"] for part in parts if part.get("timeline")]
    clocks = [timeline.pop("clock") for timeline in timelines]
    shifts = [(0.0, 0.0) if same_clock(clocks[0], clock) else clock_shift(clocks[0]["barriers"], clock["barriers"])
              for clock in clocks]  # fmt: skip
    starts = [clock["origin_s"] + shift for clock, (shift, _) in zip(clocks, shifts, strict=True)]
    for timeline, start, (_, error) in zip(timelines, starts, shifts, strict=True):
        timeline |= {"start_s": round(start - min(starts), 7), "clock_error_s": round(error, 7)}
    if clocks and clocks[0]["engine"]:
        share_communication(timelines)


def same_clock(first: dict, other: dict) -> bool:
    return first is other or (bool(first["host"]) and first["host"] == other["host"])


def clock_shift(ours: list[tuple[float, float]], theirs: list[tuple[float, float]]) -> tuple[float, float]:
    """Seconds to add to another rank's clock to get ours, and the largest error of that.

    ours, theirs: when each rank entered and left the same barriers. No rank leaves a barrier before all have entered
    it, which limits the shift from both sides; the limits of all barriers hold.

    >>> clock_shift([(1.0, 3.0), (3.0, 3.5)], [(12.0, 13.0), (13.0, 13.5)])
    (-10.0, 0.5)
    """
    pairs = list(zip(ours, theirs, strict=True))
    low = max(entered - left for (entered, _), (_, left) in pairs)
    high = min(left - entered for (_, left), (entered, _) in pairs)
    return (low + high) / 2, abs(high - low) / 2


def share_communication(timelines: list[dict]) -> None:
    """Copy the reductions that Horovod wrote on rank 0 to the other ranks: they take place on all at the same time."""
    first, *others = timelines
    spans = [span for span in first["spans"] if span["lane"] == "communication"]
    for timeline in others:
        if any(span["lane"] == "communication" for span in timeline["spans"]):
            continue
        shift, error = first["start_s"] - timeline["start_s"], timeline["clock_error_s"]
        moved = [
            span | {"start_s": round(span["start_s"] + shift, 7), "end_s": round(span["end_s"] + shift, 7)}
            for span in spans
        ]
        timeline["spans"] = sorted(itertools.chain(timeline["spans"], moved), key=lambda s: (s["lane"], s["start_s"]))
        how = f"at most {1000 * error:.3g} ms off" if error else "on the clock that they share"
        timeline["notes"].append(f"Horovod writes only on rank 0: the reductions are those of rank 0, {how}")
