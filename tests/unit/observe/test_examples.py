"""bench/observe/examples.py: how many examples a batch of any form has, and numbers for them."""

from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from bench.observe.examples import length_of, numbers_of

Pair = namedtuple("Pair", "images labels")
image, stack = torch.zeros(3, 4, 4), torch.zeros(8, 3, 4, 4)


@dataclass
class Own:
    """A batch as a class."""

    images: torch.Tensor
    labels: torch.Tensor


BATCHES = {
    "a tensor": (stack, 8),
    "a pair": ((stack, torch.zeros(8)), 8),
    "a named tuple": (Pair(stack, torch.zeros(8)), 8),
    "a dict": ({"ids": torch.zeros(6, 12), "mask": torch.zeros(6, 12), "labels": torch.zeros(6)}, 6),
    "a class": (Own(stack, torch.zeros(8)), 8),
    "nested": ([{"image": stack}, {"boxes": {"label": torch.zeros(8)}}], 8),
    "arrays": ((np.zeros((5, 2)), np.zeros(5)), 5),
    "images of different sizes": ([torch.zeros(3, 5, 4), torch.zeros(3, 4, 5)], 2),
    "a tuple of images, and one of dicts": ((tuple([image] * 4), tuple([{"boxes": torch.zeros(7, 4)}] * 4)), 4),
    "images, and a row for each of their boxes": ((stack, torch.zeros(21, 6)), 8),
    "no tensor": (["a", "b"], None),
    "packed": ({"tokens": torch.zeros(90), "starts": torch.zeros(5)}, None),
    "empty": ((), None),
}


@pytest.mark.parametrize(("batch", "length"), BATCHES.values(), ids=BATCHES)
def test_the_length_of_a_batch_or_that_it_is_unknown(batch, length):
    assert length_of(batch) == length


def test_each_example_has_a_number_of_its_bytes_and_one_of_its_labels():
    images = torch.arange(24.0).reshape(4, 6)
    images[3] = images[0]
    examples, labels = numbers_of((images, torch.tensor([1, 2, 1, 2])), 4)
    assert labels[0] == labels[2] != labels[1] == labels[3]
    assert len(set(examples.tolist())) == 4  # the same image with another label is another example
    alone, none = numbers_of({"x": images.to(torch.bfloat16)}, 4)
    assert alone[0] == alone[3] != alone[1] and none is None
    assert numbers_of(({"text": ["a", "b"]},), 2)[0] is not None
    assert numbers_of(torch.zeros(3, 2), 4) == (None, None)


def test_a_batch_that_cannot_be_read_has_no_length():
    class Refusing(dict):
        def values(self):
            raise RuntimeError("released")

    loop = []
    loop.append(loop)
    assert length_of(loop) is None and length_of(Refusing(a=1)) is None
    assert length_of(torch.zeros(4, 2).to_sparse(), known=4) == 4
