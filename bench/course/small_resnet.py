"""The network that takes ResNet-18's place in a quick run of a chapter."""

from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet


class Narrow(ResNet):
    def _make_layer(self, block, planes: int, *arguments, **options) -> nn.Sequential:
        return super()._make_layer(block, planes // 4, *arguments, **options)


def small_resnet(num_outputs: int) -> nn.Module:
    """ResNet-18 with one block in place of two, each a quarter as wide: 0.3 million parameters."""
    model = Narrow(BasicBlock, [1, 1, 1, 1])
    model.fc = nn.Linear(model.fc.in_features // 4, num_outputs)
    return model
