"""The drawings of numbers that a cell has worked out, and the pictures in the chapters' texts, drawn again."""

import re

import pytest
import torch
from torch import nn

from bench.analysis import style
from bench.analysis.drawing import svg_of
from bench.course import chapters, diagrams
from bench.course.chapters import TUTORIALS, without_pictures
from bench.course.diagrams.device_memory import memory_by_device
from tests.validation.pages import illustrations

LINE = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Sigmoid())  # images [3, 2, 2]; 65 weights


def test_memory_is_counted_by_device():
    first, second = memory_by_device(LINE, (3, 2, 2), per_device_batch=10, mode="dp", state_per_weight=2)
    assert first["weights"] == second["weights"] == first["gradients"] == second["gradients"] == 4 * 65
    assert (first["optimizer state"], second["optimizer state"]) == (2 * 4 * 65, 0)
    assert (first["images"], second["images"]) == (2 * 4 * 120, 4 * 120)
    assert (first["outputs"], second["outputs"]) == (3 * 2 * 4 * 50, 2 * 4 * 50)
    assert first["buckets"] == 0
    everywhere = memory_by_device(LINE, (3, 2, 2), per_device_batch=10, mode="ddp", num_devices=3)
    assert len(everywhere) == 3 and all(part == everywhere[0] for part in everywhere)
    assert everywhere[0]["buckets"] == 4 * 65


def test_activations_are_what_autograd_keeps():
    """A sigmoid keeps its output; a linear layer its input, which is counted once with what made it. Frozen weights
    have no gradient. The model is left alone."""
    deep = nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Sigmoid(), nn.Linear(7, 5))
    part = memory_by_device(deep, (3, 2, 2), per_device_batch=10)[1]
    assert part["activations"] == 4 * 10 * 7  # of the sigmoid: the images are counted as images
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 5))
    model[2].bias.requires_grad_(False)
    before = model[0].running_mean.clone()
    assert memory_by_device(model, (3, 2, 2), 4)[0]["gradients"] == 4 * (60 + 6)
    assert torch.equal(model[0].running_mean, before) and model[2].weight.device.type == "cpu"


@pytest.mark.parametrize(
    "figure",
    [
        diagrams.device_memory(LINE, (3, 2, 2), 10, num_devices=4, name="a line"),
        diagrams.disagreement([["all_reduce of [2]"] * 2, ["all_reduce of [2]", "broadcast of [2]", "barrier"]]),
    ],
)
def test_a_drawing_has_the_width_and_the_type_of_the_pictures(figure):
    assert figure.get_figwidth() == style.WIDTH
    texts = figure.findobj(lambda artist: hasattr(artist, "get_fontsize") and artist.get_text())
    assert min(text.get_fontsize() for text in texts) >= style.SMALL
    assert svg_of(figure).count("<svg") == 1


def test_a_drawing_that_is_a_file_is_shown_as_it_is_and_stands_alone():
    """It asks for nothing from outside and runs no script; one that moves stands still where less motion is wanted."""
    for path in diagrams.PICTURES.glob("*.svg"):
        shown = getattr(diagrams, path.stem)()._repr_svg_()
        assert shown == path.read_text() and "<script" not in shown
        assert not re.findall(r"(?:href|src)=[\"'](?!#)|url\((?!#)|@import", shown), path.name
        assert ("@keyframes" in shown) == ("prefers-reduced-motion" in shown), path.name
    with pytest.raises(AttributeError, match="rings"):
        _ = diagrams.rings


def test_the_pictures_of_the_texts_are_as_their_cells_draw_them_each_line_has_its_cell_and_no_file_is_left_over():
    drawn = {path: text for chapter in chapters.chapters() for path, text in illustrations.drawn(chapter)}
    stale = [path.name for path, text in drawn.items() if not path.exists() or path.read_text() != text]
    assert drawn and not stale, "`python -m tests.validation.renew` draws them; a record's may be of an older record"
    assert {file for path in chapters.chapters() for file in illustrations.files_in(path)} == set(drawn)
    assert set((TUTORIALS / "pictures").glob("*")) <= set(drawn)


@pytest.mark.parametrize("file", ["pictures/turns.svg", "../results/reference/a-machine/weak-1/pictures/weak.svg"])
def test_a_notebook_has_the_cell_and_not_the_line(file):
    text = f"# T\n\n```python\ncourse.diagrams.turns()\n```\n\n![Turns]({file})\n\nThen more.\n"
    assert without_pictures(text) == "# T\n\n```python\ncourse.diagrams.turns()\n```\n\nThen more.\n"
