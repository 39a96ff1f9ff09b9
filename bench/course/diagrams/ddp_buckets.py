"""DDP's buckets over one step: what computes, and what is on the wire meanwhile. A drawing with made-up times."""

from bench.analysis import style
from bench.config.modes import Look

FORWARD = 3.0
LAYERS = {"layer 4": 2.0, "layer 3": 2.0, "layer 2": 2.0, "layer 1": 2.0}  # backward, last layer first
MESSAGE = 2.4  # the all-reduce of one layer's gradients
BUCKETS = (("layer 4",), ("layer 3", "layer 2"), ("layer 1",))
OPTIMIZER = 1.5
WIRE = (style.Look(style.VERMILION, "///"), style.Look(style.ORANGE, "..."))


@style.styled
def ddp_buckets():
    """One step twice: with one exchange after backward, and with buckets that leave during backward."""
    paper = style.canvas(
        None, "DDP's buckets: what is sent while backward goes on", 3.5,
        more=("Drawing, not a measurement: the times are made up. All ranks do the same. A bucket leaves when its last "
              "gradient is there, and waits for the bucket before it.",),
    )  # fmt: skip
    panels = style.axes_on(paper, 2, sharex=True)
    late = [(tuple(LAYERS), FORWARD + sum(LAYERS.values()))]
    ready = {layer: FORWARD + sum(list(LAYERS.values())[: i + 1]) for i, layer in enumerate(LAYERS)}
    early = [(bucket, max(ready[layer] for layer in bucket)) for bucket in BUCKETS]
    longest = draw_step(panels[0], "one exchange, after backward", late, None)
    draw_step(panels[1], "three buckets, during backward", early, longest)
    panels[0].set_xlim(0, longest + 0.1)
    panels[1].set_xlabel("time →")
    return paper.figure


def draw_step(axes, title: str, messages: list, longest: float | None) -> float:
    """One step; messages: (layers, the time from which they can leave). Returns when the step ends."""
    block(axes, 1, 0.0, FORWARD, "forward", style.Look(style.SKY))
    start = FORWARD
    for layer, length in LAYERS.items():
        block(axes, 1, start, length, layer, style.Look(style.PALE))
        start += length
    axes.text((FORWARD + start) / 2, 1.43, "backward, last layer first", ha="center", va="bottom", size=style.SMALL)
    free = 0.0
    for number, (layers, ready) in enumerate(messages):
        begin, length = max(ready, free), MESSAGE * len(layers)
        words = f"bucket {number}" if len(messages) > 1 else "all gradients"
        block(axes, 0, begin, length, f"{words}\n{span(layers)}", WIRE[number % 2])
        free = begin + length
    block(axes, 1, free, OPTIMIZER, "step", style.Look(style.GREEN))
    end = free + OPTIMIZER
    if longest:
        axes.annotate("", (end, 1), (longest, 1), arrowprops={"arrowstyle": "<->", "linewidth": 1.2})
        axes.text((end + longest) / 2, 1.2, "saved", ha="center", va="bottom", size=style.SMALL)
    axes.set_yticks([1, 0], ["compute", "wire"])
    axes.set_ylim(-0.5, 1.85)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    axes.set_title(title, loc="left", size=style.TEXT)
    return end


def span(layers: tuple[str, ...]) -> str:
    """The layers of a message in a word or two.

    >>> span(("layer 3", "layer 2")), span(("layer 1",))
    ('layers 3, 2', 'layer 1')
    """
    numbers = ", ".join(layer.split()[1] for layer in layers)
    return f"layer {numbers}" if len(layers) == 1 else f"layers {numbers}"


def block(axes, lane: int, start: float, length: float, words: str, look: Look) -> None:
    """A named span in a lane."""
    axes.barh(lane, length, 0.78, start, facecolor=look.colour, hatch=look.hatch, edgecolor=style.BLACK, linewidth=0.7)
    behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8} if look.hatch else None
    place = {"ha": "center", "va": "center", "linespacing": 1.15}
    axes.text(start + length / 2, lane, words, size=style.SMALL, bbox=behind, **place)
