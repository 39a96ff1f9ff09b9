"""Two replicas with different first weights that take the same steps: the difference stays."""

import itertools

from bench.analysis import style

STARTS = [(0.0, 0.0), (1.2, 1.6)]  # weights of rank 0 and of rank 1, two numbers each: made up
STEPS = [(1.4, 0.5), (1.0, -0.5), (1.2, 0.4)]  # the mean gradient's steps, the same on both ranks
LOOKS = [style.Look(style.BLUE, "", "o"), style.Look(style.VERMILION, "", "s")]


@style.styled
def same_steps():
    """Both paths in the plane of two weights, and the difference before the first step and after each."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(style.WIDTH, 3.6), layout="constrained")
    figure.suptitle(
        "Same steps from two starts: the difference stays", size=style.TITLE, weight="bold", x=0.02, ha="left"
    )
    axes = figure.subplots()
    paths = [path(start) for start in STARTS]
    for number, (a, b) in enumerate(zip(*paths, strict=True)):
        label = "difference of the replicas, the same arrow each time" if number == 0 else None
        axes.annotate("", b, a, arrowprops={"arrowstyle": "->", "color": style.GREY, "linestyle": "--"})
        axes.plot([], [], color=style.GREY, linestyle="--", label=label)
    for rank, (points, look) in enumerate(zip(paths, LOOKS, strict=True)):
        for a, b in itertools.pairwise(points):
            axes.annotate("", b, a, arrowprops={"arrowstyle": "->", "color": look.colour, "linewidth": 1.8})
        axes.plot(*zip(*points, strict=True), look.marker, color=look.colour, label=f"rank {rank}")
        axes.annotate("start", points[0], (-9, 0), textcoords="offset points", ha="right", va="center",
                      size=style.SMALL, color=look.colour)  # fmt: skip
    axes.set_xlabel("first weight\ndrawing, not a measurement: two weights and three steps, made up")
    axes.set_ylabel("second weight")
    axes.margins(0.12)
    style.legend_above(axes, 1)
    return figure


def path(start: tuple[float, float]) -> list[tuple[float, float]]:
    """A replica's weights before the first step and after each."""
    points = [start]
    for dx, dy in STEPS:
        points.append((points[-1][0] + dx, points[-1][1] + dy))
    return points
