"""Networks for which agreement is exact, and failure certain: MODEL=tests/multiprocess/exact.py:plain."""

import os

import torch
from torch import nn

from tests import small_resnets


class Double(nn.Module):
    """In float64, also what the worker puts in: its layers instead of norms."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def to(self, *arguments, **options):
        return super().to(*arguments, **options).double()

    def forward(self, images):
        return self.model(images.double())


class Overflowing(nn.Module):
    """In the second step the last rank has an infinite gradient."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model, self.steps = model, 0
        self.last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1

    def forward(self, images):
        outputs = self.model(images)
        self.steps += self.training
        if self.last and self.steps == 2 and outputs.requires_grad:
            outputs.register_hook(lambda gradient: gradient * torch.inf)
        return outputs


def plain(num_outputs: int) -> nn.Module:
    return Double(small_resnets.smooth(num_outputs))


def overflowing(num_outputs: int) -> nn.Module:
    return Overflowing(small_resnets.smooth(num_outputs))
