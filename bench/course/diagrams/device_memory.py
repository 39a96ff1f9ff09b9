"""What is in each device's memory under nn.DataParallel and under DDP: counted from a model, not measured.

Bytes are counted by what they are for. A real device holds more: the CUDA context, the libraries' workspaces, what the
allocator keeps, and (DDP on GPUs) NCCL's buffers.
"""

import itertools

from bench.analysis import style
from bench.course.diagrams import shapes

LOOKS = {
    "weights": style.Look(style.BLUE),
    "gradients": style.Look(style.ORANGE, "///"),
    "optimizer state": style.Look(style.GREEN, "..."),
    "buckets": style.Look(style.PURPLE, "xxx"),
    "images": style.Look(style.YELLOW, "---"),
    "activations": style.Look(style.SKY),
    "outputs": style.Look(style.VERMILION, "+++"),
}
MIB = 2**20
ALIKE = {"dp": False, "ddp": True}  # whether every device keeps everything, or device 0 what exists once


def memory_by_device(
    model, image_shape: tuple[int, int, int], per_device_batch: int, num_devices: int = 2, mode: str = "dp",
    state_per_weight: int = 1,
) -> list[dict[str, int]]:  # fmt: skip
    """What one step needs on each device: bytes by what they are for, a dict per device.

    Not all of it is there at one moment: activations go while gradients come.

    model: any module that takes images. It is not run: its shapes are worked out on PyTorch's device "meta".
    image_shape: (3, H, W). mode: "dp" or "ddp". state_per_weight: numbers that the optimizer keeps for each weight (SGD
    with momentum 1, Adam 2). weights: with the buffers. gradients: one number a trained weight; under DP those of
    device 1 and up are gone after backward, with the copies of the weights. buckets: DDP's second copy of the gradients
    (its default). outputs: with their gradient; DP gathers all devices' on device 0, besides those it computed itself.
    """
    weights, trained = sizes_of(model)
    saved, output = step_bytes(model, image_shape, per_device_batch)
    image = 4 * per_device_batch * image_shape[0] * image_shape[1] * image_shape[2]
    devices = []
    for device in range(num_devices):
        main, alike = device == 0, ALIKE[mode]
        devices.append({
            "weights": weights,
            "gradients": trained,
            "optimizer state": state_per_weight * trained if main or alike else 0,
            "buckets": trained if alike else 0,
            "images": image * (num_devices if main and not alike else 1),
            "activations": saved,
            "outputs": 2 * output * (1 + num_devices if main and not alike else 1),
        })  # fmt: skip
    return devices


def sizes_of(model) -> tuple[int, int]:
    """Bytes of a model's parameters and buffers, and of its trained parameters."""
    all_of = sum(t.numel() * t.element_size() for t in itertools.chain(model.parameters(), model.buffers()))
    return all_of, sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


def step_bytes(model, image_shape: tuple[int, int, int], batch: int) -> tuple[int, int]:
    """Bytes that a forward pass keeps for the backward pass, without weights and images; and bytes of the outputs."""
    import copy

    import torch

    shapes_only = copy.deepcopy(model).to("meta").train()
    images = torch.empty(batch, *image_shape, device="meta")
    known = {storage_of(t) for t in (*shapes_only.parameters(), *shapes_only.buffers(), images)}
    kept = {}

    def pack(tensor):
        if storage_of(tensor) not in known:
            kept[storage_of(tensor)] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = shapes_only(images)
    saved = sum(t.untyped_storage().nbytes() for t in kept.values() if storage_of(t) != storage_of(outputs))
    return saved, outputs.untyped_storage().nbytes()


def storage_of(tensor) -> int:
    """What two tensors have in common that share their memory, while both live."""
    return tensor.untyped_storage()._cdata


@style.styled
def device_memory(
    model, image_shape: tuple[int, int, int], per_device_batch: int, num_devices: int = 2, state_per_weight: int = 1,
    name: str = "",
):  # fmt: skip
    """A bar per device, for nn.DataParallel and below it for DDP: computed from the model's sizes, not measured.

    Arguments as of ``memory_by_device``; name: of the model, for the title.
    """
    counted = {
        mode: memory_by_device(model, image_shape, per_device_batch, num_devices, mode, state_per_weight)
        for mode in ALIKE
    }
    bars = [(f"{mode}  device {i}" if i == 0 else f"device {i}", parts)
            for mode, devices in counted.items() for i, parts in enumerate(devices)]  # fmt: skip
    setting = f"{name or type(model).__name__}, {image_shape[1]} px, {per_device_batch} images per device"
    numbers = {0: "no optimizer state", 1: "1 number of optimizer state per weight (SGD with momentum)",
               2: "2 numbers of optimizer state per weight (Adam)"}  # fmt: skip
    note = (
        f"Computed from the model's sizes, not measured: {setting}, fp32, "
        f"{numbers.get(state_per_weight, f'{state_per_weight} numbers of optimizer state per weight')}. "
        "What one step needs, not all of it at one moment. A real device holds the libraries' and the allocator's "
        "memory besides."
    )
    height = 0.42 * len(bars) + 1.1
    figure, axes, _ = shapes.paper(height, "What is in which device's memory", note)
    axes.set_axis_on()
    whole = figure.get_figheight()
    bottom = axes.get_position().y0 + 0.5 / whole
    axes.set_position((0.19, bottom, 0.77, (height - 1.0) / whole))
    most = max(sum(parts.values()) for _, parts in bars)
    unit, word, digits = (1024 * MIB, "GiB", 2) if most > 2 * 1024 * MIB else (MIB, "MiB", 0)
    for y, (_, parts) in enumerate(bars):
        at = 0.0
        for what, look in LOOKS.items():
            axes.barh(y, parts[what] / unit, 0.7, at / unit, facecolor=look.colour, hatch=look.hatch,
                      edgecolor=style.BLACK, linewidth=0.6, label=what if y == 0 else None)  # fmt: skip
            at += parts[what]
        axes.annotate(f"{at / unit:.{digits}f}", (at / unit, y), (4, 0), textcoords="offset points", va="center",
                      size=style.SMALL)  # fmt: skip
    axes.set_yticks(range(len(bars)), [label for label, _ in bars], size=style.SMALL + 0.5)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, 1.13 * most / unit)
    axes.tick_params(axis="y", length=0)
    style.vertical_grid(axes)
    axes.set_xlabel(f"{word}, computed", size=style.SMALL + 0.5)
    style.legend_above(axes, 4)
    return figure
