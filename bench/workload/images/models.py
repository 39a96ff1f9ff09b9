"""Models: any torchvision classification architecture by name, fresh or pretrained, whole or partly frozen.

What comes in: the config, and the number of classes of the data. What goes out: a plain model on the CPU, before any
mode has wrapped it.
"""

import difflib
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench.config.options import RunConfig
from bench.errors import UserError
from bench.workload import weights as files
from bench.workload.freezing import freeze_parameters, train_mode
from bench.workload.images.once import download_timeout, locked

MOST_GROUPS = 8  # of NORM=group
SMALL_IMAGE = 64  # below this many pixels a ResNet's stem would throw most of the image away


def build_model(config: RunConfig, num_classes: int, rank: int, say: Callable[[str], None] = print) -> nn.Module:
    """The config's model, on the CPU, in training mode (``train_mode``).

    Each rank draws its own weights (seed + rank): that all replicas then start from rank 0's is the mode's work, and a
    mode that forgets it is found out. PRETRAINED weights are loaded over the drawn ones; FREEZE and TRAIN_ONLY then
    say which parameters are trained. ``say`` is told in sentences what stayed fresh and what was frozen.

    Raises UserError for a name torchvision does not have, an image size that the architecture cannot take, weights
    that are not there or do not fit, and name patterns that match nothing or leave nothing to train.
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
    if config.norm in OTHER_NORMS:
        replace_norms(model, OTHER_NORMS[config.norm])
    if config.bn_momentum:
        set_momentum(model, config)
    if not isinstance(model, tv.ResNet):  # a ResNet takes any size
        try_size(model, config)
    if config.pretrained:
        for note in load_pretrained(model, config):
            say(note)
    if config.freeze or config.train_only:
        frozen = freeze_parameters(model, config.freeze, config.train_only)
        say(f"{len(frozen)} of {len(list(model.parameters()))} parameters are frozen: {', '.join(frozen)}")
    train_mode(model)
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


def group_norm(channels: int) -> nn.GroupNorm:
    """A group norm of as many groups as divide the channels, eight at most (Wu and He 2018,
    https://arxiv.org/abs/1803.08494). It looks at one image at a time: no batch, no running statistics."""
    return nn.GroupNorm(max(groups for groups in range(1, MOST_GROUPS + 1) if channels % groups == 0), channels)


OTHER_NORMS = {"none": ScaleShift, "group": group_norm}


def replace_norms(model: nn.Module, layer: Callable[[int], nn.Module]) -> None:
    """Put ``layer(channels)`` in place of every batch norm. Without one, all modes compute the same update to rounding.

    No random number is drawn: the other weights stay as they are.
    """
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, layer(child.num_features))


def set_momentum(model: nn.Module, config: RunConfig) -> None:
    """BN_MOMENTUM: of every batch norm. With ACCUMULATE=k the statistics move k times a step, each time by a k-th of
    the images. Raises UserError for an architecture without batch norm."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        raise UserError(f"BN_MOMENTUM is of batch norm, and MODEL={config.model} has none: leave it out")
    for norm in norms:
        norm.momentum = config.bn_momentum


def load_pretrained(model: nn.Module, config: RunConfig) -> list[str]:
    """Load PRETRAINED: a file, one key of it as in ``a.pt#ema``, or torchvision's own weights. Returns sentences about
    what was taken and what not.

    A head for another number of classes stays fresh, and so does a small stem's convolution where the file's is 7x7.
    Everything else must fit; with EVALUATE, which trains nothing afterwards, these two must as well.

    Every rank reads the file. The mode's broadcast would bring rank 0's weights to the others, but the baseline without
    a broadcast needs them too, and the mode is not asked for here it is. The price is that a forgotten broadcast shows
    in the weights only where ranks still differ: in a fresh head. Where nothing stays fresh it does no harm.
    """
    notes = []
    if config.pretrained == "torchvision":
        path, weights = torchvisions_weights(model, config.model)
    else:
        path, content = files.read_named(config.pretrained, config.trust)
        weights = files.weights_in(content, path)
        taken, *others = files.places_in(content) or [""]
        if others:
            notes.append(f"{path.name} has weights under {files.listed([taken, *others])}: those of {taken} were taken")
    if config.evaluate:
        return notes + files.load_weights(model, weights, path)
    small_stem = ("conv1.weight",) if config.image_size < SMALL_IMAGE else ()
    return notes + files.load_weights(model, weights, path, new_head=True, fresh=small_stem)


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
