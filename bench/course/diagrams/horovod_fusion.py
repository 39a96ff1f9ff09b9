"""Horovod's fusion over one backward pass: tensors wait for the next cycle, and leave together. Made-up times."""

from bench.analysis import style

CYCLE = 2.0
# Gradients in the order in which backward makes them: name, when rank 0 has it, when rank 1 has it, MiB.
TENSORS = (("fc", 0.5, 0.9, 2), ("conv 4", 1.3, 1.6, 9), ("conv 3", 2.6, 5.2, 5), ("conv 2", 3.2, 3.5, 3),
           ("norm 2", 3.6, 4.4, 1), ("conv 1", 5.2, 5.6, 2))  # fmt: skip
PER_MIB = 0.11  # the time on the wire
BEHIND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8}


@style.styled
def horovod_fusion():
    """Two ranks' tensors as they become ready, the cycles, and the fused messages that come of them."""
    paper = style.canvas(
        None, "Horovod's fusion: once a cycle, what is ready everywhere leaves together", 2.9,
        more=("Drawing, not a measurement: times and sizes are made up. A mark: a gradient is there. Dashed: the "
              "background threads agree on what both ranks have. Rank 1 has norm 2 and conv 3 late, so they leave a "
              "cycle later than rank 0 had them.",),
    )  # fmt: skip
    (axes,) = style.axes_on(paper)
    messages = fused()
    end = messages[-1][1] + messages[-1][2] + 0.2
    for cycle in range(1, 4):
        axes.axvline(cycle * CYCLE, color=style.BLACK, linestyle="--", linewidth=1, zorder=0)
        axes.text(cycle * CYCLE, 2.62, f"cycle {cycle}", ha="center", va="bottom", size=style.SMALL, bbox=BEHIND)
    for rank in range(2):
        for number, tensor in enumerate(TENSORS):
            draw_tensor(axes, 2 - rank, tensor[1 + rank], tensor[0], number)
    for number, (names, start, length) in enumerate(messages):
        look = (style.Look(style.VERMILION, "///"), style.Look(style.ORANGE, "..."))[number % 2]
        axes.barh(0, length, 0.8, start, facecolor=look.colour, hatch=look.hatch, edgecolor=style.BLACK, linewidth=0.7)
        place = {"ha": "center", "va": "center", "linespacing": 1.1}
        axes.text(start + length / 2, 0, "\n".join(names), size=style.SMALL, bbox=BEHIND, **place)
    axes.set_yticks([2, 1, 0], ["ready on\nrank 0", "ready on\nrank 1", "wire"])
    axes.set(xlim=(0, end), ylim=(-0.55, 2.95), xticks=[], xlabel="time since backward began →")
    axes.tick_params(axis="y", length=0)
    return paper.figure


def fused() -> list[tuple[list[str], float, float]]:
    """The messages: names, start, length on the wire. A tensor leaves at the first cycle at which all ranks have it.

    >>> [names for names, _, _ in fused()]
    [['fc', 'conv 4'], ['conv 2'], ['conv 3', 'norm 2', 'conv 1']]
    """
    cycles = {}
    for name, *ready, mib in TENSORS:
        cycles.setdefault(-(-max(ready) // CYCLE) * CYCLE, []).append((name, mib))
    messages, free = [], 0.0
    for cycle, tensors in sorted(cycles.items()):
        start, length = max(cycle, free), PER_MIB * sum(mib for _, mib in tensors) + 0.5
        messages.append(([name for name, _ in tensors], start, length))
        free = start + length
    return messages


def draw_tensor(axes, lane: int, x: float, name: str, number: int) -> None:
    """A gradient's moment on one rank, its name above or below by turns."""
    up = number % 2 == 0
    axes.plot([x, x], [lane - 0.12, lane + 0.12], color=style.BLUE, linewidth=3, solid_capstyle="butt")
    axes.text(x, lane + (0.16 if up else -0.16), name, ha="center", va="bottom" if up else "top", size=style.SMALL,
              bbox=BEHIND, zorder=1)  # fmt: skip
