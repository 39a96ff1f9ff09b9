"""Memory of each device under nn.DataParallel and under DDP: computed from a model's sizes, not measured.

A real device also holds the CUDA context, library workspaces, the allocator's cache, and NCCL's buffers (DDP on GPUs).
"""

import copy
import itertools

from bench.analysis import style

LOOKS = {
    "weights": style.PlotStyle(style.BLUE),
    "gradients": style.PlotStyle(style.ORANGE, "///"),
    "optimizer state": style.PlotStyle(style.GREEN, "..."),
    "buckets": style.PlotStyle(style.PURPLE, "xxx"),
    "images": style.PlotStyle(style.YELLOW, "---"),
    "activations": style.PlotStyle(style.SKY),
    "outputs": style.PlotStyle(style.VERMILION, "+++"),
}
MIB = 2**20
EQUAL_DEVICES = {"dp": False, "ddp": True}  # whether all devices hold everything, or device 0 what exists once


def memory_by_device(
    model, image_shape: tuple[int, int, int], per_device_batch: int, num_devices: int = 2, mode: str = "dp",
    state_per_weight: int = 1,
) -> list[dict[str, int]]:  # fmt: skip
    """Bytes by purpose that one step needs, a dict per device. Not all at one moment: gradients replace activations.

    model: any module that takes images; it runs on PyTorch's "meta" device only. image_shape: (3, H, W). mode: "dp" or
    "ddp". state_per_weight: optimizer numbers per weight (SGD with momentum 1, Adam 2).

    weights: with buffers. gradients: one number per trained weight; under DP, other devices than 0 free theirs after
    backward. buckets: DDP's second copy of the gradients (its default). outputs: with their gradient; DP gathers all
    devices' outputs on device 0.
    """
    weights = sum(t.numel() * t.element_size() for t in itertools.chain(model.parameters(), model.buffers()))
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    saved, output = step_bytes(model, image_shape, per_device_batch)
    image = 4 * per_device_batch * image_shape[0] * image_shape[1] * image_shape[2]
    devices = []
    for device in range(num_devices):
        main, equal = device == 0, EQUAL_DEVICES[mode]
        devices.append({
            "weights": weights,
            "gradients": trained,
            "optimizer state": state_per_weight * trained if main or equal else 0,
            "buckets": trained if equal else 0,
            "images": image * (num_devices if main and not equal else 1),
            "activations": saved,
            "outputs": 2 * output * (1 + num_devices if main and not equal else 1),
        })  # fmt: skip
    return devices


def step_bytes(model, image_shape: tuple[int, int, int], batch: int) -> tuple[int, int]:
    """Bytes that a forward pass keeps for backward, without weights and images; and bytes of the outputs."""
    import torch

    def storage(tensor) -> int:  # the same for tensors that share memory, while both live
        return tensor.untyped_storage()._cdata

    shapes_only = copy.deepcopy(model).to("meta").train()
    images = torch.empty(batch, *image_shape, device="meta")
    known = {storage(t) for t in (*shapes_only.parameters(), *shapes_only.buffers(), images)}
    kept = {}

    def pack(tensor):
        if storage(tensor) not in known:
            kept[storage(tensor)] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = shapes_only(images)
    saved = sum(t.untyped_storage().nbytes() for t in kept.values() if storage(t) != storage(outputs))
    return saved, outputs.untyped_storage().nbytes()


@style.styled
def device_memory(
    model, image_shape: tuple[int, int, int], per_device_batch: int, num_devices: int = 2, state_per_weight: int = 1,
    name: str = "",
):  # fmt: skip
    """A bar per device, under nn.DataParallel and DDP. Arguments as in ``memory_by_device``; name: of the model."""
    bars = []
    for mode in EQUAL_DEVICES:
        devices = memory_by_device(model, image_shape, per_device_batch, num_devices, mode, state_per_weight)
        bars += [(f"device {i}" if i else f"{mode}  device {i}", parts) for i, parts in enumerate(devices)]
    setting = f"{name or type(model).__name__}, {image_shape[1]} px, {per_device_batch} images per device"
    numbers = {0: "no optimizer state", 1: "1 number of optimizer state per weight (SGD with momentum)",
               2: "2 numbers of optimizer state per weight (Adam)"}  # fmt: skip
    note = (
        f"Computed from the model's sizes, not measured: {setting}, fp32, "
        f"{numbers.get(state_per_weight, f'{state_per_weight} numbers of optimizer state per weight')}. "
        "The sum over one step; not all of it is in use at the same time. A real device also holds the memory of "
        "the libraries and the allocator."
    )
    height = 0.42 * len(bars) + 1.1
    figure, axes, _ = paper(height, "Memory of each device by category", note)
    axes.set_axis_on()
    whole = figure.get_figheight()
    bottom = axes.get_position().y0 + 0.5 / whole
    axes.set_position((0.19, bottom, 0.77, (height - 1.0) / whole))
    most = max(sum(parts.values()) for _, parts in bars)
    unit, word, digits = (1024 * MIB, "GiB", 2) if most > 2 * 1024 * MIB else (MIB, "MiB", 0)
    for y, (_, parts) in enumerate(bars):
        left = 0.0
        for what, look in LOOKS.items():
            axes.barh(y, parts[what] / unit, 0.7, left / unit, facecolor=look.colour, hatch=look.hatch,
                      edgecolor=style.BLACK, linewidth=0.6, label=what if y == 0 else None)  # fmt: skip
            left += parts[what]
        axes.annotate(f"{left / unit:.{digits}f}", (left / unit, y), (4, 0), textcoords="offset points", va="center",
                      size=style.SMALL)  # fmt: skip
    axes.set_yticks(range(len(bars)), [label for label, _ in bars], size=style.SMALL + 0.5)
    axes.set(ylim=(len(bars) - 0.4, -0.6), xlim=(0, 1.13 * most / unit))
    axes.tick_params(axis="y", length=0)
    style.vertical_grid(axes)
    axes.set_xlabel(f"{word}, computed", size=style.SMALL + 0.5)
    style.legend_above(axes, 4)
    return figure


def paper(height: float, title: str, note: str):
    """(figure, axes, height): an empty drawing with a title, and a note below it. Data units are inches."""
    from matplotlib.figure import Figure

    lines = style.wrapped(title, style.TITLE, weight="bold")
    notes = style.wrapped(note, style.SMALL)
    head = len(lines) * style.TITLE * style.LINE / 72 + style.MARGIN
    foot = len(notes) * style.SMALL * style.LINE / 72 + style.MARGIN
    whole = height + head + foot
    figure = Figure(figsize=(style.WIDTH, whole), facecolor=style.WHITE)
    figure.text(style.MARGIN / style.WIDTH, 1 - style.MARGIN / 2 / whole, "\n".join(lines), size=style.TITLE,
                weight="bold", va="top")  # fmt: skip
    figure.text(style.MARGIN / style.WIDTH, style.MARGIN / 2 / whole, "\n".join(notes), size=style.SMALL,
                color="#404040", va="bottom")  # fmt: skip
    axes = figure.add_axes((0, foot / whole, 1, height / whole))
    axes.set(xlim=(0, style.WIDTH), ylim=(0, height))
    axes.axis("off")
    return figure, axes, height
