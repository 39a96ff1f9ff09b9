"""The drawings of the first chapters: what they say is worked out, and what they are made of stands alone."""

import re
import xml.etree.ElementTree as ET

import pytest
import torch
from torch import nn

from bench.analysis import style
from bench.analysis.drawing import svg_of
from bench.course import diagrams
from bench.course.diagrams.device_memory import memory_by_device
from bench.course.diagrams.ring_all_reduce import ring_steps

LINE = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Sigmoid())  # images [3, 2, 2]; 65 weights


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 7])
def test_in_the_ring_every_rank_ends_with_every_sum(num_ranks):
    steps = ring_steps(num_ranks)
    assert len(steps) == 1 + 2 * (num_ranks - 1)
    assert all(chunk == set(range(num_ranks)) for rank in steps[-1].held for chunk in rank)
    for step in steps[1:]:
        assert sorted(sender for sender, _, _ in step.sends) == list(range(num_ranks))  # each sends once per step
        assert all(to == (sender + 1) % num_ranks for sender, to, _ in step.sends)


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_the_ring_is_whole_without_script_or_links(num_ranks):
    drawing = diagrams.ring_all_reduce(num_ranks)
    root = ET.fromstring(drawing.svg())
    texts = [element.text or "" for element in root.iter() if element.tag.endswith("text")]
    assert sum(text.startswith("step ") for text in texts) == 2 * (num_ranks - 1)  # as a table it needs no animation
    assert "<script" not in drawing.svg() and not re.search(r"(href|src)=|url\(", drawing.svg())
    assert "prefers-reduced-motion" in drawing.svg() and "@keyframes" in drawing.svg()
    assert "@keyframes" not in diagrams.ring_all_reduce(num_ranks, animated=False).svg()


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
    """A sigmoid keeps its output; a linear layer its input, which is counted once with what made it."""
    deep = nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Sigmoid(), nn.Linear(7, 5))
    part = memory_by_device(deep, (3, 2, 2), per_device_batch=10)[1]
    assert part["activations"] == 4 * 10 * 7  # of the sigmoid: the images are counted as images


def test_frozen_weights_have_no_gradient():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    model[1].bias.requires_grad_(False)
    assert memory_by_device(model, (3, 2, 2), 4)[0]["gradients"] == 4 * 60


@pytest.mark.parametrize(
    "figure",
    [
        diagrams.data_parallel_flow(),
        diagrams.process_group(),
        diagrams.process_group(3, 3),
        diagrams.device_memory(LINE, (3, 2, 2), 10, num_devices=4, name="a line"),
        diagrams.disagreement([["all_reduce of [2]"] * 2, ["all_reduce of [2]", "broadcast of [2]", "barrier"]]),
        diagrams.sharding(),
        diagrams.all_reduce_ways(),
        diagrams.fit_callbacks(),
        diagrams.patterns(),
    ],
)
def test_a_drawing_has_the_width_and_the_type_of_the_pictures(figure):
    assert figure.get_figwidth() == style.WIDTH
    texts = figure.findobj(lambda artist: hasattr(artist, "get_fontsize") and artist.get_text())
    assert min(text.get_fontsize() for text in texts) >= style.SMALL
    assert svg_of(figure).count("<svg") == 1


def test_of_what_is_divided_each_rank_holds_its_part():
    for num_ranks, held in ((4, ["16", "10", "7", "4"]), (2, ["16", "12", "10", "8"])):
        texts = [text.get_text() for text in diagrams.sharding(num_ranks).axes[0].texts]
        assert [text.partition("\n")[0] for text in texts if "sends" in text] == held


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError):
        diagrams.ring_all_reduce(5)
    with pytest.raises(ValueError):
        diagrams.process_group(4, 1)
    with pytest.raises(ValueError):
        diagrams.disagreement([["barrier"]])
    with pytest.raises(ValueError):
        diagrams.sharding(5)


def test_counting_leaves_the_model_alone():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten())
    before = model[1].running_mean.clone()
    memory_by_device(model, (3, 2, 2), 4)
    assert torch.equal(model[1].running_mean, before) and model[0].weight.device.type == "cpu"
