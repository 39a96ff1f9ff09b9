"""A ResNet-18 whose activations have no kink: MODEL=tests/smooth_resnet.py:build.

A ReLU whose input lies as close to zero as rounding opens in one run and stays closed in another, and whole layers are
then apart by percents of their way. A softplus as steep as this one lets as much through, and knows no such place: sums
in another order stay as close as they are.
"""

from torch import nn
from torchvision.models import resnet18

from bench.workload.models.torchvisions import use_small_stem


def build(num_outputs: int) -> nn.Module:
    """For images of a few pixels."""
    model = resnet18(num_classes=num_outputs)
    use_small_stem(model)
    for module in list(model.modules()):
        if hasattr(module, "relu"):
            module.relu = nn.Softplus(beta=10)
    return model
