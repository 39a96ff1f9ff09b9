"""Horovod's timeline: the file of its background thread, which torch's profiler cannot see, read into spans."""

import contextlib
import json
import math

BEGIN, END = "bench.timeline.begin", "bench.timeline.end"  # our own reductions in Horovod's file


def is_mark(tensor: dict) -> bool:
    return tensor["name"].endswith((BEGIN, END))


def read_engine(text: str) -> tuple[list[dict], float]:
    """The finished operations in the text of HOROVOD_TIMELINE, and the time of its origin in seconds since 1970.

    Each operation: name, start_s, inner_s (when the first activity inside began; None without one), end_s, shape and
    dtype. A tensor is a process in the file; its spans are nested B and E events, and the E of an operation, unlike
    that of a negotiation, carries dtype and shape. A truncated file is read as far as it goes. Raises ValueError.
    """
    epoch_s, names, open_spans, done = None, {}, {}, []
    for event in parse_events(text):
        arguments, pid = event.get("args") or {}, event.get("pid")
        if event.get("ph") == "M":
            if "start_time_since_epoch_in_micros" in arguments:
                epoch_s = arguments["start_time_since_epoch_in_micros"] / 1e6
            elif "name" in arguments:
                names[pid] = arguments["name"]
        elif event.get("ph") == "B":
            stack = open_spans.setdefault(pid, [])
            if stack and stack[0]["inner_s"] is None:
                stack[0]["inner_s"] = event["ts"] / 1e6
            stack.append({"start_s": event["ts"] / 1e6, "inner_s": None})
        elif event.get("ph") == "E" and open_spans.get(pid):
            span = open_spans[pid].pop()
            if not open_spans[pid]:
                span |= {"name": names.get(pid, ""), "end_s": event["ts"] / 1e6}
                done.append(span | {"dtype": arguments.get("dtype", ""), "shape": arguments.get("shape")})
    if epoch_s is None:
        raise ValueError("it has no header")
    return done, epoch_s


def parse_events(text: str) -> list[dict]:
    """The events of a file that should be a JSON list, but may be truncated in the middle of a line."""
    with contextlib.suppress(json.JSONDecodeError):
        return json.loads(text)
    decoder, events, at = json.JSONDecoder(), [], text.find("{")
    while at >= 0:
        try:
            event, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            break
        events.append(event)
        at = text.find("{", at)
    return events


def engine_offset(tensors: list[dict], guess: float, begin: tuple[float, float], end: tuple[float, float]) -> float:
    """Seconds from the file's clock to perf_counter: the guess, limited to what the two markers allow.

    begin, end: perf_counter before and after each marker, whose reduction is between them. Raises ValueError if the
    markers are not in the file or contradict each other.
    """
    lows, highs = [], []
    for name, (before, after) in ((BEGIN, begin), (END, end)):
        for tensor in (t for t in tensors if t["name"].endswith(name) and t["shape"] is not None):
            lows.append(before - tensor["start_s"])
            highs.append(after - tensor["end_s"])
    if not lows:
        raise ValueError("our own reductions are not in it")
    low, high = max(lows), min(highs)
    if low > high:
        raise ValueError(f"its clock and ours do not fit: {low - high:.6f} s of difference")
    return min(max(guess, low), high)


def fusions(tensors: list[dict]) -> list[dict]:
    """Fused reductions: tensors that had all begun before any of them was processed.

    tensors: of ``read_engine``. Returns start_s, end_s and the total bytes of each, in their order.
    """
    groups = []
    for tensor in sorted(tensors, key=lambda t: t["start_s"]):
        acted = tensor["end_s"] if tensor["inner_s"] is None else tensor["inner_s"]
        size = nbytes_of(tensor["dtype"], tensor["shape"])
        if groups and tensor["start_s"] <= groups[-1]["acted_s"]:
            group = groups[-1]
            group["end_s"] = max(group["end_s"], tensor["end_s"])
            group["acted_s"] = min(group["acted_s"], acted)
            group["bytes"] += size
        else:
            groups.append({"start_s": tensor["start_s"], "end_s": tensor["end_s"], "acted_s": acted, "bytes": size})
    return groups


def nbytes_of(dtype: str, shape: str) -> int:
    """Bytes of a tensor as Horovod describes it.

    >>> nbytes_of("float32", "[64, 3, 3, 3]"), nbytes_of("float16", "[10]"), nbytes_of("float32", "[]")
    (6912, 20, 4)
    """
    bits = int("".join(c for c in dtype if c.isdigit()) or 8)
    return math.prod(json.loads(shape)) * bits // 8
