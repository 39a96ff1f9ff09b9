"""Ranks, machines, and the group that they form."""

from bench.analysis import style
from bench.course.diagrams import shapes


@style.styled
def process_group(machines: int = 2, per_machine: int = 2):
    """A drawing of ``machines`` machines with ``per_machine`` processes each, all in one process group.

    At most 3 machines and 3 processes per machine, so that the text stays legible.
    """
    if not (1 <= machines <= 3 and 1 <= per_machine <= 3):
        raise ValueError("one to three machines of one to three processes can be drawn")
    world, row = machines * per_machine, 0.62
    height = 1.25 + row * per_machine + 0.62
    note = "Drawing. What is written in capitals are environment variables: the launcher sets them in each process."
    figure, axes, top = shapes.paper(height, f"A process group: world_size = {world}", note)
    gap, edge = 0.2, style.MARGIN
    wide = (style.WIDTH - 2 * edge - gap * (machines - 1)) / machines
    store = top - 0.5
    shapes.box(axes, edge, store, style.WIDTH - 2 * edge, 0.42, "", "#F4F4F4")
    axes.text(style.WIDTH / 2, store + 0.21, "rendezvous at MASTER_ADDR:MASTER_PORT (a store that rank 0 serves)",
              ha="center", va="center", size=style.SMALL)  # fmt: skip
    bottom = 0.55
    for machine in range(machines):
        x = edge + machine * (wide + gap)
        tall = row * per_machine + 0.36
        shapes.box(axes, x, bottom, wide, tall, "", "#FAFAFA", dashed=True)
        axes.text(x + 0.1, bottom + tall - 0.16, f"machine {machine}", va="center", size=style.SMALL, weight="bold")
        shapes.arrow(axes, (x + wide / 2, bottom + tall), (x + wide / 2, store), style.GREY, both=True)
        for local in range(per_machine):
            rank = machine * per_machine + local
            y = bottom + tall - 0.34 - row * (local + 1) + 0.1
            text = f"RANK={rank}  LOCAL_RANK={local}\nWORLD_SIZE={world}"
            shapes.box(axes, x + 0.12, y, wide - 0.24, row - 0.1, text, "#E8F3FA")
    shapes.box(axes, edge, 0.06, style.WIDTH - 2 * edge, 0.32, "the group: every collective is called by all ranks",
               style.BLUE)  # fmt: skip
    for machine in range(machines):
        x = edge + machine * (wide + gap) + wide / 2
        shapes.arrow(axes, (x, bottom), (x, 0.38), style.BLUE)
    return figure
