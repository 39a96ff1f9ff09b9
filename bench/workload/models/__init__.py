"""The plain model of a config, on the CPU, before a mode wraps it: torchvision's, timm's or Keras's by name, gpt, or a
user's function; fresh or pretrained, whole or partly frozen."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench.config import own
from bench.config.options import RunConfig
from bench.config.rules import GPT
from bench.errors import UserError
from bench.workload import own_code
from bench.workload import weights as files
from bench.workload.activation_checkpointing import checkpoint_blocks
from bench.workload.freezing import freeze_parameters, train_mode


def build_model(config: RunConfig, num_outputs: int, rank: int, say: Callable[[str], None] = print) -> nn.Module:
    """The config's model, on the CPU, in training mode (``train_mode``).

    Each rank draws its own weights (seed + rank), so that a mode that does not broadcast rank 0's is detected.
    PRETRAINED, then FREEZE is applied. ``say`` gets sentences about parameters not loaded or frozen.
    Raises UserError for an unknown name, an image size or weights that do not fit, patterns that match nothing or leave
    nothing to train, and a model too large for memory.
    """
    torch.manual_seed(config.seed + rank)
    try:
        model = architecture(config, num_outputs)
    except (MemoryError, RuntimeError) as error:
        if not own_code.is_out_of_memory(error):
            raise
        raise UserError(f"MODEL={config.model} is too large: its weights do not fit into memory: use a "
                        f"smaller one ({(str(error) or 'MemoryError').splitlines()[0]})") from None  # fmt: skip
    if config.norm in OTHER_NORMS:
        replace_norms(model, OTHER_NORMS[config.norm])
    if config.bn_momentum:
        norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
        if not norms:
            raise UserError(f"BN_MOMENTUM applies to batch norm, but MODEL={config.model} has none: leave it out")
        for norm in norms:
            norm.momentum = config.bn_momentum
    if config.pretrained:
        for note in load_pretrained(model, config):
            say(note)
    if config.freeze or config.train_only:
        frozen = freeze_parameters(model, config.freeze, config.train_only)
        named = ", ".join(frozen[:4]) + (f" and {len(frozen) - 4} more" if len(frozen) > 4 else "")
        say(f"{len(frozen)} of {len(list(model.parameters()))} parameters are frozen: {named}")
    if config.activation_checkpointing:
        checkpoint_blocks(model, config.model)
    train_mode(model)
    return model


def architecture(config: RunConfig, num_outputs: int) -> nn.Module:
    if config.model.startswith(own.KERAS):
        from bench.workload.models import keras_models

        return keras_models.build(config, num_outputs)
    if own.named(config.model):
        model = own_code.call("MODEL", config.model, num_outputs)
        if not isinstance(model, nn.Module):
            raise UserError(f"MODEL={config.model} returned a {type(model).__name__}, not a torch.nn.Module")
        parameters = list(model.parameters())
        if not parameters:
            raise UserError(f"MODEL={config.model} returned a model without parameters: nothing to train")
        if any(isinstance(parameter, nn.UninitializedParameter) for parameter in parameters):
            raise UserError(f"MODEL={config.model} returned uninitialised lazy layers: call the model "
                            "once on an example before you return it")  # fmt: skip
        return model
    if config.model == GPT:
        from bench.workload.models import gpt as family
    else:
        from bench.workload.models import torchvisions as family  # torchvision takes half a second

    return family.build(config, num_outputs)


class ScaleShift(nn.Module):
    """A batch norm without its statistics: y = scale * x + shift per channel. The scale starts at 1/2: without
    normalisation each residual block would double the variance."""

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels,), 0.5))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = (1,) * (x.dim() - 2)
        return x * self.weight.view(-1, *places) + self.bias.view(-1, *places)


def group_norm(channels: int) -> nn.GroupNorm:
    """At most eight groups (Wu and He 2018, https://arxiv.org/abs/1803.08494). It normalises each image separately."""
    return nn.GroupNorm(max(groups for groups in range(1, 9) if channels % groups == 0), channels)


OTHER_NORMS = {"none": ScaleShift, "group": group_norm}


def replace_norms(model: nn.Module, layer: Callable[[int], nn.Module]) -> None:
    """Replace every batch norm by ``layer(channels)``, without drawing random numbers. Without batch norms all modes
    compute the same update up to rounding."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, _BatchNorm):
                after = [each for part in ("drop", "act") if isinstance(each := getattr(child, part, None), nn.Module)]
                new = layer(child.num_features)
                setattr(module, name, nn.Sequential(new, *after) if after else new)  # timm's contain it


def load_pretrained(model: nn.Module, config: RunConfig) -> list[str]:
    """Load PRETRAINED: a file, one key of it as in ``a.pt#ema``, or torchvision's weights. Returns sentences about
    loaded and skipped parameters.

    A head for another number of classes is not loaded, nor a small stem's convolution if the file's is 7x7. Everything
    else must match; with EVALUATE also these two. Every rank reads the file, because the no-communication baseline has
    no broadcast; so a missing broadcast shows only in a new head.
    """
    from bench.workload.models import torchvisions

    notes = []
    if config.pretrained == "torchvision":
        path, weights = torchvisions.torchvisions_weights(model, config.model)
    else:
        path, content = files.read_named(config.pretrained, config.trust)
        weights = files.weights_in(content, path)
        taken, *others = files.places_in(content) or [""]
        if others:
            names = files.first_names([taken, *others])
            notes.append(f"{path.name} has weights under {names}: those of {taken} were taken")
    if config.evaluate:
        return notes + files.load_weights(model, weights, path)
    small_stem = ("conv1.weight",) if config.image_size and config.image_size < torchvisions.SMALL_IMAGE else ()
    return notes + files.load_weights(model, weights, path, new_head=True, fresh=small_stem)
