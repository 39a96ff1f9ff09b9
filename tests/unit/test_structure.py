"""Tensors in structures of many kinds: found, replaced, cut and joined."""

import dataclasses
from collections import OrderedDict, UserDict, deque, namedtuple
from types import MappingProxyType, SimpleNamespace

import pytest
import torch
from torch import nn

from bench import structure

X = torch.arange(4.0)
Pair = namedtuple("Pair", "a b")
Frozen = dataclasses.make_dataclass("Frozen", ["a"], frozen=True)
Slots = dataclasses.make_dataclass("Slots", ["a"], slots=True)


class Items(dict):
    """Items that are attributes as well."""

    def __init__(self, **items):
        super().__init__(**items)
        self.__dict__ = self


@pytest.mark.parametrize("item", [
    X, (X, None), [1, X], {"a": {"b": X}}, Pair(X, "text"), Frozen(X), Slots(X), Items(a=X), OrderedDict(a=X),
    UserDict(a=X), MappingProxyType({"a": X}), deque([X]), SimpleNamespace(a=[X], model=nn.Linear(2, 2)),
], ids=lambda item: type(item).__name__)  # fmt: skip
def test_a_tensor_is_found_and_replaced_and_the_structure_stays(item):
    found = structure.each(lambda tensor: tensor + 1, item)
    assert type(found) is type(item)
    assert [tensor.tolist() for tensor in structure.tensors(item)] == [X.tolist()]
    assert [tensor.tolist() for tensor in structure.tensors(found)] == [(X + 1).tolist()]
    halves = structure.split(item, lambda tensor: tensor.chunk(2))
    assert len(halves) == 2 and structure.tensors(structure.join(halves, torch.cat))[0].equal(X)


def test_an_item_and_its_attribute_stay_one_and_what_refers_to_itself_ends():
    """What does not change is not copied."""
    found = structure.each(lambda tensor: tensor + 1, Items(a=X))
    assert found.a is found["a"]
    item = SimpleNamespace(a=X)
    item.me = item
    assert len(structure.tensors(item)) == 1 and structure.each(lambda tensor: tensor, item) is item
