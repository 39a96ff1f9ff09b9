"""The models of the published tables, layer by layer: ``python -m tests.validation.published_models`` writes them.

Each is torchvision's, without weights: names and shapes of its parameters in the order of the forward pass, and how
many multiplications a layer does for one image. They are in results/published/models.
"""

import csv
import io
import math

import torch
from torch import nn
from torchvision import models

from tests.validation.forecast.published import FOLDER

PIXELS = {"resnet50": 224, "resnet101": 224, "resnext50_32x4d": 224, "resnext101_32x8d": 224, "vgg16": 224,
          "inception_v3": 299}  # fmt: skip
OTHERWISE = {"inception_v3": {"aux_logits": False, "init_weights": False}}  # TensorFlow's has no auxiliary classifier


def text_of(name: str) -> str:
    """A model's file."""
    with torch.device("meta"):
        model = models.get_model(name, **OTHERWISE.get(name, {})).eval()
        image = torch.empty(1, 3, PIXELS[name], PIXELS[name])
    buffers = {}
    for buffer in model.buffers():
        kind = str(buffer.dtype).removeprefix("torch.")
        buffers[kind] = buffers.get(kind, 0) + buffer.numel() * buffer.element_size()
    out = io.StringIO(newline="")
    out.write(f"# model: torchvision's {name}, images of {PIXELS[name]} pixels\n")
    out.write("# buffers: " + ", ".join(f"{kind} {size}" for kind, size in buffers.items()) + "\n")
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["parameter", "shape", "multiplications"])
    for layer, times in layers_of(model, image):
        for number, (parameter, value) in enumerate(layer.named_parameters(recurse=False)):
            shape = "x".join(map(str, value.shape))
            rows.writerow([f"{names(model)[layer]}.{parameter}", shape, 0 if number else times])
    return out.getvalue()


def names(model: nn.Module) -> dict[nn.Module, str]:
    """Of each layer."""
    return {layer: name for name, layer in model.named_modules()}


def layers_of(model: nn.Module, image: torch.Tensor) -> list[tuple[nn.Module, int]]:
    """(layer, its multiplications) of each layer that has parameters, in the order in which they are called."""
    found = []

    def called(layer: nn.Module, _, made: torch.Tensor) -> None:
        weight = layer.weight
        found.append((layer, made.numel() * math.prod(weight.shape[1:]) if weight.dim() > 1 else 0))

    for layer in model.modules():
        if next(layer.parameters(recurse=False), None) is not None:
            layer.register_forward_hook(called)
    with torch.no_grad():
        model(image)
    return found


if __name__ == "__main__":
    for each in PIXELS:
        (FOLDER / "models" / f"{each}.csv").write_text(text_of(each))
