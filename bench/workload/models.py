"""Models: any torchvision classification architecture by name."""

import difflib

import torch
from torch import nn

from bench.config import RunConfig
from bench.errors import UserError

SMALL_IMAGE = 64  # below this many pixels a ResNet's stem would throw most of the image away


def build_model(config: RunConfig, num_classes: int, rank: int) -> nn.Module:
    """The config's model with fresh weights, on the CPU, in training mode.

    Each rank draws its own weights (seed + rank): that all replicas then start from rank 0's is the mode's work, and a
    mode that forgets it is found out. Raises UserError for a name torchvision does not have, or an image size that
    the architecture cannot take.
    """
    import torchvision.models as tv  # 0.5 s: only the worker pays it

    names = tv.list_models(module=tv)
    if config.model not in names:
        near = difflib.get_close_matches(config.model, names, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"torchvision has {', '.join(names[:6])}, …"
        raise UserError(f"unknown MODEL={config.model}: {hint}")
    torch.manual_seed(config.seed + rank)
    # The inceptions return auxiliary outputs too unless told otherwise; the loss here is of one output.
    options = {"aux_logits": False, "init_weights": True} if config.model in ("googlenet", "inception_v3") else {}
    try:
        model = tv.get_model(config.model, weights=None, num_classes=num_classes, **options)
    except TypeError as error:
        raise UserError(f"MODEL={config.model} cannot be built here: {error}") from None
    if config.image_size < SMALL_IMAGE and isinstance(model, tv.ResNet):
        use_small_stem(model)
    if config.norm == "none":
        replace_norms(model)
    if not isinstance(model, tv.ResNet):  # a ResNet takes any size
        try_size(model, config)
    return model


def try_size(model: nn.Module, config: RunConfig) -> None:
    """Raise UserError when the architecture cannot take images of this size."""
    model.eval()
    try:
        with torch.no_grad():
            model(torch.zeros(1, 3, config.image_size, config.image_size))
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"IMAGE_SIZE={config.image_size} is not a size that {config.model} can take ({reason}): try 224"
        ) from None
    model.train()


def use_small_stem(model: nn.Module) -> None:
    """Replace a ResNet's 7x7 stride-2 convolution and max-pool by one 3x3 convolution of stride 1.

    The stem for ImageNet divides the side by 4 before the first block; at 32 pixels 8 would be left. This is the stem
    of the ResNet paper's CIFAR experiments (He et al. 2015, section 4.2).
    """
    model.conv1 = nn.Conv2d(3, model.conv1.out_channels, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()


class ScaleShift(nn.Module):
    """What is left of a batch norm without its statistics: y = scale * x + shift, one pair a channel.

    scale, shift: [channels]. The parameter count is the batch norm's. The scale starts at 1/2: without normalisation
    each residual block would double the variance, and half keeps a ResNet's activations in range.
    """

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels,), 0.5))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, channels, H, W] -> the same shape."""
        return x * self.weight[:, None, None] + self.bias[:, None, None]


def replace_norms(model: nn.Module) -> None:
    """Replace every batch norm in place. Without one, all modes compute the same update to rounding."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, ScaleShift(child.num_features))
