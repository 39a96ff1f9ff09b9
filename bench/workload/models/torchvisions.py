"""torchvision's classification architectures and timm's, by name, with random weights; torchvision's own weights.

What comes in: the config, and the number of classes of the data. What goes out: a plain model on the CPU.
"""

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

SMALL_IMAGE = 64  # below this many pixels a ResNet's stem would throw most of the image away


def build(config: RunConfig, num_classes: int) -> nn.Module:
    """The architecture that MODEL names. Raises UserError for a name that nobody has, or one that cannot be built."""
    return from_timm(config, num_classes) if config.model.startswith(TIMM) else torchvisions(config, num_classes)


def torchvisions(config: RunConfig, num_classes: int) -> nn.Module:
    import torchvision.models as tv  # 0.5 s: only the worker pays it

    names = tv.list_models(module=tv)
    if config.model not in names:
        near = difflib.get_close_matches(config.model, names, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"torchvision has {', '.join(names[:6])}, …"
        raise UserError(f"unknown MODEL={config.model}: {hint}")
    # The inceptions return auxiliary outputs too unless told otherwise; the loss here is of one output.
    options = {"aux_logits": False, "init_weights": True} if config.model in ("googlenet", "inception_v3") else {}
    try:
        model = tv.get_model(config.model, weights=None, num_classes=num_classes, **options)
    except TypeError as error:
        raise UserError(f"MODEL={config.model} cannot be built here: {error}") from None
    if config.image_size and config.image_size < SMALL_IMAGE and isinstance(model, tv.ResNet):
        use_small_stem(model)
    if not isinstance(model, tv.ResNet):  # a ResNet takes any size
        try_size(model, config)
    return model


def from_timm(config: RunConfig, num_classes: int) -> nn.Module:
    """timm's of this name, with random weights; built for the image size where the architecture has one of its own."""
    name = config.model.removeprefix(TIMM)
    try:
        import timm
    except ImportError:
        raise UserError(f"MODEL={config.model} needs the package timm: pip install timm") from None
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"did you mean {' or '.join(f'{TIMM}{other}' for other in near)}?" if near else "see timm.list_models()"
        raise UserError(f"unknown MODEL={config.model}: {hint}")
    options = {"pretrained": False, "num_classes": num_classes}
    try:
        model = timm.create_model(name, img_size=config.image_size, **options)
    except TypeError:  # most networks of convolutions take any size, and no argument for it
        model = timm.create_model(name, **options)
    except (AssertionError, ValueError) as error:
        raise size_refused(config, error) from None
    try_size(model, config)
    return model


def try_size(model: nn.Module, config: RunConfig) -> None:
    """Raise UserError when the architecture cannot take images of this size; data that are no images have none."""
    if not config.image_size:
        return
    model.eval()
    try:
        with torch.no_grad():
            model(torch.zeros(1, 3, config.image_size, config.image_size))
    except (RuntimeError, AssertionError, ValueError) as error:
        raise size_refused(config, error) from None
    model.train()


def size_refused(config: RunConfig, error: Exception) -> UserError:
    return UserError(
        f"IMAGE_SIZE={config.image_size} is not a size that {config.model} can take ({str(error).splitlines()[0]}): "
        "try 224"
    )


def use_small_stem(model: nn.Module) -> None:
    """Replace a ResNet's 7x7 stride-2 convolution and max-pool by one 3x3 convolution of stride 1.

    The stem for ImageNet divides the side by 4 before the first block; at 32 pixels 8 would be left. This is the stem
    of the ResNet paper's CIFAR experiments (He et al. 2015, section 4.2).
    """
    model.conv1 = nn.Conv2d(3, model.conv1.out_channels, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()


def torchvisions_weights(model: nn.Module, name: str) -> tuple[Path, dict[str, torch.Tensor]]:
    """torchvision's best weights of an architecture, and the file they lie in after the first download.

    torchvision builds the whole network for them, since only it knows the old names in some files, and which nets
    were trained on inputs of another range (``model`` is told so). torch.hub downloads to a name of its own, checks
    the hash that is part of the file's name, and renames.

    Raises UserError in one line that names the file and its place, when it cannot be downloaded or read.
    """
    import torchvision.models as tv

    weights = tv.get_model_weights(name).DEFAULT
    path = Path(torch.hub.get_dir(), "checkpoints", os.path.basename(weights.url))
    try:  # one process downloads, the others find the file
        with locked(path.with_name(f"{path.name}.lock")), download_timeout():
            source = tv.get_model(name, weights=weights, progress=False)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        what = f"PRETRAINED=torchvision: {path} "
        if path.exists():
            raise UserError(
                f"{what}cannot be read ({files.reason(error)}): remove it to have it fetched anew"
            ) from None
        raise UserError(
            f"{what}is not there and cannot be fetched ({files.reason(error)}): download {weights.url} elsewhere "
            "and put it there"
        ) from None
    if hasattr(source, "transform_input"):  # googlenet and inception_v3
        model.transform_input = source.transform_input
    # inception_v3's second classifier helps only its training from scratch, and is not built here.
    return path, {key: value for key, value in source.state_dict().items() if not key.startswith("AuxLogits.")}
