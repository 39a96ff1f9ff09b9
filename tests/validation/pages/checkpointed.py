"""The picture of the manual's section on activation checkpointing: memory over one step, predicted."""

import itertools
from pathlib import Path

from bench.analysis import drawing, style
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.files import PROJECT
from bench.predict.memory.step import Step, simulate

FOLDER = PROJECT / "tutorials" / "manual"
PHASES = ("forward", "backward")
ASKED = {"mode": "single", "model": "resnet50", "data": "synthetic", "per_device_batch": 64, "precision": "fp32"}


def save() -> list[Path]:
    return drawing.save_all({"activation-checkpointing": draw()}, FOLDER)


@style.styled
def draw():
    key = ("Predicted, not measured: ResNet-50, 64 images of 224 pixels, fp32, SGD, one GPU; without the images' pool, "
           "the CUDA context and cuDNN's workspaces. The axis is the order of operations, not time.")  # fmt: skip
    paper = style.canvas(None, "Memory over one step", 2.9, more=[key])
    (axes,) = style.axes_on(paper)
    for on, name, colour, width in ((False, "all activations kept", style.BLUE, 2.6),
                                    (True, "ACTIVATION_CHECKPOINTING=1", style.VERMILION, 1.2)):  # fmt: skip
        config = resolve(RunConfig(**ASKED, activation_checkpointing=on), "cuda", 1)
        places, gib = curve(simulate(config, 1000))
        axes.plot(places, gib, color=colour, linewidth=width, label=f"{name}: {max(gib):.2f} GiB at the peak")
    axes.set_xticks([0.5, 1.5], PHASES)
    axes.tick_params(axis="x", length=0)
    axes.axvline(1, color=style.GREY, linewidth=0.8, linestyle=":")
    axes.set_xlim(0, 2)
    axes.set_ylim(bottom=0)
    style.finish(axes, "", "GiB", grid="y")
    style.legend_above(axes, 1)
    return paper.figure


def curve(step: Step) -> tuple[list[float], list[float]]:
    """Where each event is, with each phase from a whole number to the next, and GiB after it."""
    events, after = step.trace.events, sum(step.trace.after.values())
    totals = itertools.accumulate((size for _, size in events), initial=after - sum(size for _, size in events))
    ends = [step.begin(phase) for phase in (*PHASES, "synchronize")]
    places = []
    for number, (begin, end) in enumerate(itertools.pairwise(ends)):
        places += [number + (at - begin) / (end - begin) for at in range(begin, end)]
    return [*places, len(PHASES)], [total / 2**30 for total in totals][ends[0] : ends[-1] + 1]
