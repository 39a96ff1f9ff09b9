"""FLOPs of a training step per example: counted once per run by torch's FlopCounterMode, on tensors that have shapes
but no data. It counts matrix products, convolutions and attention; not elementwise operations, norms, or the optimizer.
"""

import copy
import functools
import logging
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench.errors import UserError
from bench.structure import each
from bench.workload import batch, own_code
from bench.workload.base import Workload

SOURCE = "torch.utils.flop_counter"
NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d


def count_flops(workload: Workload, model: nn.Module, train_set, say: Callable[[str], None]) -> dict:
    """Facts for the record; empty if the FLOPs cannot be counted, which ``say`` gets in one sentence. model: plain, on
    the CPU, in training mode; it is unchanged."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")  # logs a traceback of what it cannot simulate
    before, logger.disabled = logger.disabled, True
    try:
        with torch.random.fork_rng([]):
            inputs, targets = workload.sample(train_set)
            flops, examples = flops_of_step(workload, model, inputs, targets), batch.length(targets)
            found = {"flops_per_example": flops / examples, "flops_source": SOURCE}
            if workload.config.activation_checkpointing:
                again = flops_of_step(workload, model, inputs, targets, recompute=True)
                found["hardware_flops_per_example"] = again / examples
        if not flops:
            raise UserError("it has no matrix product that torch counts")
    except (Exception, SystemExit) as error:  # the user's code can raise anything
        say(f"FLOPs of MODEL={workload.config.model} cannot be counted, so TFLOP/s and MFU are unknown: "
            f"{own_code.why_not_simulated(error)}")  # fmt: skip
        return {}
    finally:
        logger.disabled = before
    return found


def flops_of_step(workload: Workload, model: nn.Module, inputs, targets, recompute: bool = False) -> int:
    """Forward and backward; with ``recompute`` also what activation checkpointing computes again. Attention is computed
    by matrix products, so it counts the same for all devices, and without the saving of a causal mask."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        return flops_on("meta", workload, model, inputs, targets, recompute)
    except (Exception, SystemExit):  # for example, it uses tensors that it has made on the CPU: three times as slow
        with FakeTensorMode(allow_non_fake_inputs=True):
            return flops_on("cpu", workload, model, inputs, targets, recompute)


def scaled(norm: nn.Module, input: torch.Tensor) -> torch.Tensor:
    """In place of a batch norm, of which no FLOPs are counted and whose simulation takes most of the time: an output of
    the same shape and type that needs the same gradients."""
    output = input.clone()
    for tensor in (norm.weight, norm.bias):
        if tensor is not None:
            output = output * tensor.view(-1, *[1] * (input.dim() - 2))
    return output.to(input.dtype)


def flops_on(device: str, workload: Workload, model: nn.Module, inputs, targets, recompute: bool) -> int:
    def empty(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, requires_grad=tensor.requires_grad, device=device)

    copies = {id(p): nn.Parameter(empty(p), p.requires_grad) for p in model.parameters()}
    model = copy.deepcopy(model, copies | {id(buffer): empty(buffer) for buffer in model.buffers()})
    for module in model.modules():
        if hasattr(module, "recomputed"):
            module.recomputed = recompute
        if type(module) in NORMS:
            module.forward = functools.partial(scaled, module)
    inputs, targets = each(empty, inputs), each(empty, targets)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        _, loss = workload.step(model, inputs, targets, workload.loss)
        loss.sum().backward()
    return counter.get_total_flops()
