"""What each rank holds of a model under Adam: with DDP, and with ever more of it divided (ZeRO's three stages)."""

from bench.analysis import style
from bench.course.diagrams import shapes
from bench.course.diagrams.device_memory import LOOKS as ALL_LOOKS
from bench.formulas import sharded_bytes

LOOKS = {what: ALL_LOOKS[what] for what in ("weights", "gradients", "optimizer state")}
# way -> the kinds that are divided, and how many times (N-1)/N of the weights' bytes a rank sends per step
WAYS = {
    "DDP": ((), 2),
    "ZeRO-1": (("optimizer state",), 2),
    "ZeRO-2": (("optimizer state", "gradients"), 2),
    "ZeRO-3": (tuple(LOOKS), 3),
}
ROW, LEFT, RIGHT = 0.86, 0.8, 1.42  # inches: a row's height, the room for its name, and for its bytes


@style.styled
def sharding(num_ranks: int = 4):
    """A row per way, a column per rank; of what is divided each rank has another part. Two to four ranks."""
    if not 2 <= num_ranks <= 4:
        raise ValueError("two to four ranks can be drawn")
    note = (
        "Computed, not measured: float32, Adam, between backward and step. What a rank holds is coloured; the pale "
        "rest is on other ranks. Sent per step: in times of the weights' bytes, by reduce-scatter and all-gather."
    )
    figure, axes, top = shapes.paper(ROW * len(WAYS) + 0.62, "Who holds what", note)
    wide = (style.WIDTH - LEFT - RIGHT) / num_ranks
    for place, (kind, size) in enumerate(sharded_bytes(1, 1, ()).items()):
        x, look = 0.15 + 1.85 * place, LOOKS[kind]
        shapes.box(axes, x, top - 0.24, 0.24, 0.17, "", look.colour, look.hatch)
        axes.text(x + 0.32, top - 0.155, f"{kind}, {size:g} bytes", va="center", size=style.SMALL)
    for rank in range(num_ranks):
        axes.text(LEFT + wide * (rank + 0.5), top - 0.43, f"rank {rank}", ha="center", va="center", size=style.SMALL)
    axes.text(style.WIDTH - 0.1, top - 0.43, "bytes per parameter", ha="right", va="center", size=style.SMALL)
    for row, (way, (divided, sent)) in enumerate(WAYS.items()):
        y = top - 0.55 - ROW * (row + 1) + 0.1
        held = sum(sharded_bytes(1, num_ranks, divided).values())
        axes.text(0.1, y + 0.33, way, va="center", size=style.TEXT, weight="bold")
        for rank in range(num_ranks):
            draw_rank(axes, LEFT + wide * rank + 0.1, y, wide - 0.2, rank, num_ranks, divided)
        axes.text(style.WIDTH - 0.1, y + 0.33, f"{held:g}\nsends {sent} (N − 1) / N", ha="right",
                  va="center", size=style.SMALL, linespacing=1.4)  # fmt: skip
    return figure


def draw_rank(axes, x: float, y: float, width: float, rank: int, num_ranks: int, divided: tuple[str, ...]) -> None:
    """The bars of one rank, as wide as their bytes; what is on other ranks is left pale."""
    tall, sizes = ROW - 0.22, sharded_bytes(1, 1, ())
    for kind, look in LOOKS.items():
        of_it = width * sizes[kind] / sum(sizes.values())
        shapes.box(axes, x, y, of_it, tall, "", style.WHITE if kind not in divided else "#F0F0F0")
        part = tall / num_ranks if kind in divided else tall
        bottom = y + tall - part * (rank + 1) if kind in divided else y
        shapes.box(axes, x, bottom, of_it, part, "", look.colour, look.hatch)
        x += of_it
