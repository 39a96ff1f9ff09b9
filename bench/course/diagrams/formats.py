"""What the number formats can hold: ranges and spacing, from the formats' definitions."""

from bench.analysis import style

NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@style.styled
def number_formats():
    """Positive numbers that fp32, bf16 and fp16 can hold, on a logarithmic axis. Returns a matplotlib figure.

    Solid: at full precision. Hatched: subnormal numbers, which lose digits towards the left end and are zero beyond it.
    The text next to or in a bar names the next number above 1: that is how fine the format is.
    """
    import math

    import torch
    from matplotlib.figure import Figure

    figure = Figure(figsize=(style.WIDTH, 2.5), facecolor=style.WHITE, layout="constrained")
    axes = figure.subplots()
    colours = (style.PALE, style.SKY, style.ORANGE)
    for row, (name, colour) in enumerate(zip(NAMES, colours, strict=True)):
        info = torch.finfo(getattr(torch, name))
        low, normal, high = (math.log10(x) for x in (info.tiny * info.eps, info.tiny, info.max))
        axes.barh(row, high - normal, left=normal, height=0.62, color=colour, edgecolor=style.BLACK, linewidth=0.8)
        axes.barh(row, normal - low, left=low, height=0.62, color=style.WHITE, edgecolor=style.BLACK, hatch="////",
                  linewidth=0.8)  # fmt: skip
        axes.text(6.5, row, f"next above 1: 1 + {info.eps:.1g}", size=style.SMALL, va="center")
    axes.axvline(0, color=style.BLACK, linewidth=0.7, linestyle=":")
    axes.set_yticks(range(3), NAMES.values())
    axes.set_xticks(range(-40, 41, 10), ["1e-40", "1e-30", "1e-20", "1e-10", "1", "1e10", "1e20", "1e30", "1e40"])
    axes.set(xlim=(-47, 41), ylim=(2.6, -0.6), xlabel="magnitude (hatched: subnormal)")
    return figure
