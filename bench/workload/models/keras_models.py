"""MODEL=keras:NAME and MODEL=keras:FILE.py:FUNCTION: a model of Keras 3, computed by torch, as an nn.Module.

Keras keeps weights in its own variables: nn.DataParallel's replicas would compute with the originals, and batch norm's
statistics are parameters there. So the weights are parameters and buffers of a torch module, and each call passes them
to Keras (``stateless_call``)."""

import os
import re
from collections.abc import Iterator

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from bench.config import own
from bench.config.options import RunConfig
from bench.config.own import KERAS
from bench.errors import UserError
from bench.workload import own_code

# In Keras's errors about a model that was built for N H W C.
SHAPE = re.compile(r"input.?(size|shape)|channels_", re.IGNORECASE)


def build(config: RunConfig, num_classes: int) -> nn.Module:
    """The config's model on the CPU, its weights drawn from torch's seed; it returns logits.

    A file's function is called with the number of classes. Raises UserError without Keras 3 on torch, for an unknown
    name, an image size that does not fit, and what is not a model with one input.
    """
    if isinstance(torch.empty(0), FakeTensor):  # `bench predict memory`
        raise UserError(f"MODEL={config.model} is a Keras model: its memory cannot be predicted")
    keras = keras_on_torch(config)
    refused = {"PRETRAINED": config.pretrained, "BN_MOMENTUM": config.bn_momentum, "COMPILE": config.compile}
    if given := next((option for option, value in refused.items() if value), None):
        raise UserError(
            f"MODEL={config.model} is a Keras model, but {given} applies only to torch models: leave it out"
        )
    keras.backend.clear_session()  # a layer's name contains the number of earlier ones
    keras.utils.set_random_seed(torch.initial_seed() % 2**32)
    try:
        with keras.device("cpu"):
            if own.named(config.model):
                model = own_code.call("MODEL", config.model, num_classes)
            else:
                model = from_applications(keras, config, num_classes)
    except UserError as error:
        if not SHAPE.search(str(error)):
            raise
        raise UserError(
            f"{error}; use the input shape (3, height, width), because the images are channels first"
        ) from error
    except (ValueError, RuntimeError) as error:
        raise UserError(f"MODEL={config.model} cannot be built here: {str(error).splitlines()[0]}") from None
    if not isinstance(model, keras.Model) or not model.built or not isinstance(model.input_shape, tuple):
        raise UserError(f"MODEL={config.model} is not a built keras.Model with one input")
    norms = [layer for layer in layers_of(model) if isinstance(layer, keras.layers.BatchNormalization)]
    if norms and config.norm not in ("batch", "none"):
        raise UserError(f"MODEL={config.model} has Keras batch norms, which NORM={config.norm} cannot replace")
    if config.norm == "none":
        for norm in norms:
            norm.call = without_batch(norm.call)
            if norm.scale:
                norm.gamma.assign(norm.gamma / 2)  # as in ScaleShift
    return FromKeras(model)


def without_batch(call):
    """A batch norm's call that never normalises with its batch."""
    return lambda inputs, training=None, mask=None: call(inputs, training=False, mask=mask)


def layers_of(model) -> Iterator:
    for layer in model.layers:
        yield layer
        yield from layers_of(layer) if hasattr(layer, "layers") else ()


def keras_on_torch(config: RunConfig):
    """The module keras. Raises UserError if it is not installed, or uses another backend."""
    if (backend := os.environ.setdefault("KERAS_BACKEND", "torch")) != "torch":
        raise UserError(f"MODEL={config.model}: Keras would compute with {backend}: set KERAS_BACKEND=torch")
    if config.device == "cpu":
        os.environ["KERAS_TORCH_DEVICE"] = "cpu"
    try:
        import keras
    except ImportError:
        raise UserError(f"MODEL={config.model} needs Keras 3: pip install 'keras>=3.5'") from None
    if keras.backend.backend() != "torch":
        raise UserError(f"MODEL={config.model}: Keras computes with {keras.backend.backend()}: set KERAS_BACKEND=torch")
    keras.config.set_image_data_format("channels_first")
    return keras


def from_applications(keras, config: RunConfig, num_classes: int):
    name, known = config.model.removeprefix(KERAS), [n for n in dir(keras.applications) if n[0].isupper()]
    if name not in known:
        raise UserError(
            f"unknown MODEL={config.model}: Keras has {', '.join(known[:8])}, … (or keras:FILE.py:FUNCTION)"
        )
    shape = (3, config.image_size, config.image_size)
    options = {"weights": None, "classes": num_classes, "input_shape": shape, "classifier_activation": None}
    return getattr(keras.applications, name)(**options)


class Shared:
    """Keras's model, shared by copies of the module; its own weights are not used."""

    def __init__(self, model):
        self.model = model

    def __deepcopy__(self, memo) -> "Shared":
        return self


class FromKeras(nn.Module):
    """A Keras model with weights in this module: trainable ones are parameters, the others buffers. The states of its
    random generators (dropout) are drawn from torch's generator in each call, so that ranks and replicas differ and a
    resumed run continues."""

    def __init__(self, model):
        super().__init__()
        self.shared = Shared(model)
        self.last = model.input_shape[1] != 3 and model.input_shape[-1] == 3  # images as N H W C
        self.weights = nn.ParameterDict({name(v): nn.Parameter(copied(v)) for v in model.trainable_variables})
        variables = model.non_trainable_variables
        self.states = [None if v.path.endswith("seed_generator_state") else name(v) for v in variables]
        for variable, state in zip(model.non_trainable_variables, self.states, strict=True):
            if state:
                self.register_buffer(state, copied(variable))

    def layers(self) -> list:
        return list(layers_of(self.shared.model))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[b, 3, H, W] -> [b, classes]."""
        model = self.shared.model
        held = [getattr(self, state) if state else torch.randint(2**31, v.value.shape).to(v.value.dtype)
                for v, state in zip(model.non_trainable_variables, self.states, strict=True)]  # fmt: skip
        trained = [self.weights[name(variable)] for variable in model.trainable_variables]
        images = images.permute(0, 2, 3, 1) if self.last else images
        outputs, after = model.stateless_call(trained, held, images, training=self.training)
        if self.training:
            with torch.no_grad():
                for state, before, now in zip(self.states, held, after, strict=True):
                    if state and now is not before:
                        before.copy_(now)
        return outputs


def name(variable) -> str:
    return variable.path.replace(".", "_")


def copied(variable) -> torch.Tensor:
    return variable.value.detach().clone()
