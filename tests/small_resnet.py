"""A ResNet of two blocks, for what needs a network and not a large one: MODEL=tests/small_resnet.py:build.

On one core of a CPU a step with 120 images of 8 pixels takes a tenth of that of torchvision's shufflenet_v2_x0_5, whose
grouped convolutions are slow there.
"""

from collections import OrderedDict

from torch import nn
from torchvision.models.resnet import BasicBlock


def build(num_outputs: int) -> nn.Module:
    """For images of 4 pixels and more."""
    halved = nn.Sequential(nn.Conv2d(16, 32, 1, stride=2, bias=False), nn.BatchNorm2d(32))
    parts = {
        "conv1": nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
        "bn1": nn.BatchNorm2d(16),
        "relu": nn.ReLU(inplace=True),
        "layer1": BasicBlock(16, 16),
        "layer2": BasicBlock(16, 32, stride=2, downsample=halved),
        "pool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "fc": nn.Linear(32, num_outputs),
    }
    return nn.Sequential(OrderedDict(parts))
