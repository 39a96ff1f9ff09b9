"""How often each image of a small set is counted, by way of sharing it out: a grid of exact counts, no measurement."""

from bench.analysis import style


@style.styled
def coverage_grid(ways: dict[str, list[int]], results: dict[str, str]):
    """One row a way, one column an image, in each cell how often it is counted.

    ways: name -> counts, one per image, all of one length. results: name -> what is written at the end of its row. A
    cell of 1 is empty of colour; an image that is left out is red, one that counts more than once is orange with the
    number in it, so that print in grey still says which is which. Returns a matplotlib figure.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    images = len(next(iter(ways.values())))
    step = 1.55  # rows a way: its name, then its cells
    figure = Figure(figsize=(style.WIDTH, 0.5 + 0.62 * len(ways)), facecolor=style.WHITE, layout="constrained")
    axes = figure.subplots()
    for row, (name, counts) in enumerate(ways.items()):
        top = row * step
        axes.text(0, top - 0.08, name, size=style.TEXT, weight="bold", va="bottom")
        axes.text(images + 0.2, top + 0.45, results[name], size=style.SMALL, va="center", linespacing=1.3)
        for image, count in enumerate(counts):
            colour = style.WHITE if count == 1 else style.VERMILION if count == 0 else style.ORANGE
            axes.add_patch(Rectangle((image, top), 0.92, 0.9, facecolor=colour, edgecolor=style.BLACK, linewidth=0.8))
            axes.text(image + 0.46, top + 0.47, str(count), size=style.TEXT, ha="center", va="center")
    axes.set(xlim=(-0.1, images + 5.2), ylim=(len(ways) * step - 0.4, -0.75))
    axes.set_axis_off()
    return figure
