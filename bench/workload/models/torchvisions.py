"""torchvision's and timm's classification architectures by name, with random weights; torchvision's weights."""

import difflib
import os
import pickle
from pathlib import Path

import torch
from torch import nn

from bench.config.options import RunConfig
from bench.config.rules import TIMM
from bench.errors import UserError
from bench.workload import weights as files
from bench.workload.once import download_timeout, locked

SMALL_IMAGE = 64  # pixels; below this a ResNet's stem would discard most of the image


def build(config: RunConfig, num_classes: int) -> nn.Module:
    """Raises UserError for an unknown name, or a model that cannot be built."""
    if config.model.startswith(TIMM):
        return from_timm(config, num_classes)
    import torchvision.models as tv  # takes 0.5 s, only in the worker

    require_known(config.model, tv.list_models(module=tv))
    # By default the inceptions also return auxiliary outputs.
    options = {"aux_logits": False, "init_weights": True} if config.model in ("googlenet", "inception_v3") else {}
    try:
        model = tv.get_model(config.model, weights=None, num_classes=num_classes, **options)
    except TypeError as error:
        raise UserError(f"MODEL={config.model} cannot be built here: {error}") from None
    if config.image_size and config.image_size < SMALL_IMAGE and isinstance(model, tv.ResNet):
        use_small_stem(model)
    if not isinstance(model, tv.ResNet):  # which takes any size
        try_size(model, config)
    return model


def require_known(name: str, known: list[str], prefix: str = "") -> None:
    if name not in known:
        near = [f"{prefix}{other}" for other in difflib.get_close_matches(name, known, n=3)]
        hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(known[:6])}, …"
        raise UserError(f"unknown MODEL={prefix}{name}: {hint}")


def from_timm(config: RunConfig, num_classes: int) -> nn.Module:
    name = config.model.removeprefix(TIMM)
    try:
        import timm
    except ImportError:
        raise UserError(f"MODEL={config.model} needs the package timm: pip install timm") from None
    if not timm.is_model(name):  # it also knows names with a tag, as in resnet18.a1_in1k
        require_known(name, timm.list_models(), TIMM)
    options = {"pretrained": False, "num_classes": num_classes}
    try:
        model = timm.create_model(name, img_size=config.image_size, **options)
    except TypeError:  # most convolutional networks take any size and have no such argument
        model = timm.create_model(name, **options)
    except (AssertionError, ValueError) as error:
        raise size_refused(config, error) from None
    try_size(model, config)
    return model


def try_size(model: nn.Module, config: RunConfig) -> None:
    """Raise UserError if the architecture does not support images of this size."""
    if not config.image_size:  # the data are not images
        return
    model.eval()
    try:
        with torch.no_grad():
            model(torch.zeros(1, 3, config.image_size, config.image_size))
    except (RuntimeError, AssertionError, ValueError) as error:
        raise size_refused(config, error) from None
    model.train()


def size_refused(config: RunConfig, error: Exception) -> UserError:
    return UserError(f"IMAGE_SIZE={config.image_size} is not a valid size for {config.model} "
                     f"({str(error).splitlines()[0]}): try 224")  # fmt: skip


def use_small_stem(model: nn.Module) -> None:
    """Replace a ResNet's 7x7 stride-2 convolution and max-pool, which divide the side by 4, by one 3x3 convolution of
    stride 1: the stem of the ResNet paper's CIFAR experiments (He et al. 2015, section 4.2)."""
    model.conv1 = nn.Conv2d(3, model.conv1.out_channels, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()


def torchvisions_weights(model: nn.Module, name: str) -> tuple[Path, dict[str, torch.Tensor]]:
    """torchvision's best weights of an architecture, and the downloaded file. Raises UserError.

    torchvision builds the complete network for them: only it knows the old names in some files, and which networks were
    trained on inputs of another range (then ``model.transform_input`` is set).
    """
    import torchvision.models as tv

    weights = tv.get_model_weights(name).DEFAULT
    path = Path(torch.hub.get_dir(), "checkpoints", os.path.basename(weights.url))
    try:
        with locked(path.with_name(f"{path.name}.lock")), download_timeout():
            source = tv.get_model(name, weights=weights, progress=False)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        what = f"PRETRAINED=torchvision: {path} "
        if path.exists():
            raise UserError(f"{what}cannot be read ({files.reason(error)}): remove it to download it again") from None
        raise UserError(f"{what}does not exist and cannot be downloaded ({files.reason(error)}): download "
                        f"{weights.url} elsewhere and put it there") from None  # fmt: skip
    if hasattr(source, "transform_input"):  # googlenet and inception_v3
        model.transform_input = source.transform_input
    # inception_v3's auxiliary classifier, which is not built here
    return path, {key: value for key, value in source.state_dict().items() if not key.startswith("AuxLogits.")}
