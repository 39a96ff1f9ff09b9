"""One step of each mode as predicted, and below it as emulated: what computes, and what is being sent meanwhile.

On both sides it is the profile's median step on every rank, so nobody waits for a slower one.
"""

import itertools

from bench.analysis import lanes, style
from bench.analysis.lanes import Panel
from bench.config.options import RunConfig
from bench.formulas import union
from bench.predict.emulation.record import EmulationRecord
from bench.predict.pictures.points import Asked, Points, how_emulated
from bench.predict.step import result
from bench.predict.step.engines import BACKWARD, ENGINES, FORWARD, OPTIMIZER, REST, WEIGHTS, Step

ROUNDING_S = 1e-9
KEY = (
    "compute: when the device is busy; in the gaps it waits for messages, or for what an engine does itself. comm.: "
    "number and MiB of a bucket of gradients (ddp, zero1; emulated: from its launch) or of what horovod packs; at the "
    "end the weights (zero1). gather, scatter: a block's weights from all ranks, its gradients to them (fsdp)."
)


@style.styled
def draw(asked: Asked, most: int, points: Points):
    """A panel for each mode: on as many devices as in the largest emulation with a timeline, or on ``most``."""
    with_one = [record for record in points.emulated if record.timeline]
    ranks = max((record.num_devices for record in with_one), default=most)
    beside = {record.config.mode: record for record in with_one if record.num_devices == ranks}
    panels = [panel_of(config, asked, ranks, beside.get(mode)) for mode, config in asked.configs.items()]
    foot = [KEY, *asked.standing(), *how_emulated(list(beside.values())), *unseen(beside.values())]
    what = "predicted, emulated (rank 0)" if beside else "predicted"
    return lanes.draw(None, f"One step on {ranks} devices: {what}", panels, "milliseconds from the start of the step",
                      more=tuple(foot))  # fmt: skip


def panel_of(config: RunConfig, asked: Asked, ranks: int, record: EmulationRecord | None) -> Panel:
    """One mode."""
    step = ENGINES[config.mode](asked.profile, config, ranks, asked.link)
    spans, title = {result.PREDICTED: spans_of(step)}, f"{config.mode}: {milliseconds(step.seconds)} predicted"
    ends = [step.seconds]
    if record:
        spans[record.kind] = record.timeline
        ends.append(max(span["end_s"] for span in record.timeline if span["lane"] == "phase"))
        title += f"; {milliseconds(ends[-1])} {record.kind}"
    return Panel(title, {name: lanes.lanes_of(found) for name, found in spans.items()}, max(ends))


def milliseconds(seconds: float) -> str:
    """A time.

    >>> milliseconds(0.1234)
    '123 ms'
    """
    return f"{style.number(1e3 * seconds)} ms"


def unseen(records) -> list[str]:
    """Of which emulations the messages were not seen."""
    return [f"{record.config.mode}: the emulation shows no messages of this engine." for record in records
            if not any(span["lane"] == "communication" for span in record.timeline)]  # fmt: skip


def spans_of(step: Step) -> list[dict]:
    """A predicted step as a timeline has it."""
    found = [span("phase", name, begin, end) for name, begin, end in phases_of(step)]
    busy = union([(begin, end) for _, begin, end in step.computed], gap=ROUNDING_S)
    found += [span("compute", "device", begin, end) for begin, end in busy]
    weights = [entry for entry in step.sent if entry[0] == WEIGHTS]  # one message for each parameter
    sent = [entry for entry in step.sent if entry[0] != WEIGHTS]
    if weights:
        begins, ends, sizes = zip(*(entry[1:] for entry in weights), strict=True)
        sent.append(("weights", min(begins), max(ends), sum(sizes)))
    return found + [span("communication", *entry) for entry in sent]


def span(lane: str, name: str, begin: float, end: float, nbytes: int | None = None) -> dict:
    """One span."""
    return {"lane": lane, "name": name, "start_s": begin, "end_s": end, "bytes": nbytes}


def phases_of(step: Step) -> list[tuple[str, float, float]]:
    """(name, begin, end) of the phases as a clock has them: with what is waited for in each.

    Buffers are sent at the beginning of forward, and weights at the end of the optimizer's step.
    """
    ends = {name: max(end for what, _, end in step.computed if what == name) for name in (REST, FORWARD, BACKWARD)}
    exchanged = next(begin for what, begin, _ in step.computed if what == OPTIMIZER)
    ends |= {step.waits_in: exchanged, OPTIMIZER: step.seconds}
    pairs = itertools.pairwise([0.0, *ends.values()])
    return [(name, begin, end) for name, (begin, end) in zip(ends, pairs, strict=True) if end > begin]
