"""ResNets for tests that need a network and not a large one: MODEL=tests/small_resnets.py:two_blocks.

On one core of a CPU a step of ``two_blocks`` with 120 images of 8 pixels takes a tenth of that of torchvision's
shufflenet_v2_x0_5, whose grouped convolutions are slow there.
"""

from collections import OrderedDict

from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from bench.workload.models.torchvisions import use_small_stem


def two_blocks(num_outputs: int) -> nn.Module:
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


def with_dropout(num_outputs: int) -> nn.Module:
    """Two blocks, and random numbers in every forward pass."""
    model = two_blocks(num_outputs)
    model.fc = nn.Sequential(nn.Dropout(), model.fc)
    return model


class Narrow(ResNet):
    """A ResNet whose blocks have a quarter of the width."""

    def _make_layer(self, block, planes: int, *arguments, **options) -> nn.Sequential:
        return super()._make_layer(block, planes // 4, *arguments, **options)


def narrow(num_outputs: int, depth: int = 2) -> nn.Module:
    """A ResNet-18 with a sixteenth of the weights, 2.8 MB of them, in all its layers. For images of a few pixels."""
    model = Narrow(BasicBlock, [depth] * 4)
    model.fc = nn.Linear(model.fc.in_features // 4, num_outputs)
    use_small_stem(model)
    return model


def smooth(num_outputs: int) -> nn.Module:
    """A ResNet-10 as narrow, of 1.2 MB, with activations that have no kink.

    A ReLU whose input lies as close to zero as rounding opens in one run and stays closed in another, and whole layers
    are then apart by percents of their way. A softplus as steep as this one lets as much through, and knows no such
    place: sums in another order stay as close as they are.
    """
    model = narrow(num_outputs, 1)
    for module in list(model.modules()):
        if hasattr(module, "relu"):
            module.relu = nn.Softplus(beta=10)
    return model
