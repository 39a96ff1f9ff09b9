"""MODE=fsdp: weights, gradients and the optimizer's state sharded over the ranks: torch's ``fully_shard`` (FSDP2), the
third stage of ZeRO (Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054).

Every rank keeps 1/N of each parameter, cut along its first dimension, and the same part of its gradient and momentum.
The model is sharded block by block; a block's weights are complete only while it computes. Each step:
  1. forward, block by block: an all-gather collects the block's weights from all ranks, the block computes, and what
     came from the others is freed;
  2. backward, from the last block to the first: the weights are gathered again, the block's whole gradient is computed,
     and a reduce-scatter gives each rank the MEAN over the ranks of its own part. Weights and gradient are freed;
  3. every rank steps its own parts of all parameters. Nothing is broadcast: the next forward pass gathers.

What a rank holds of P parameters in float32 under Adam, N ranks: 16 P / N bytes, and temporarily 1 or 2 full blocks.
What it receives in a step: (N-1)/N of the weights twice, and of the gradients once: 1.5 times that of ddp,
whose all-reduce is a reduce-scatter and an all-gather (``bench.formulas.received_bytes``). RESHARD_AFTER_FORWARD=0
keeps the weights between forward and backward: they are gathered once, and at the peak the rank holds all of them.

What to notice:
  - a forward pass is a collective: no rank may take one more than the others, in a validation too;
  - ``fully_shard`` makes nothing equal: each rank would keep a part of its OWN first weights. So rank 0's are sent;
  - buffers are not sharded and not synchronised: batch norm's running statistics are each rank's own, as in Horovod;
    with NORM=sync they are those of the global batch. A validation and a checkpoint take rank 0's;
  - with ACCUMULATE the passes without exchange keep unsharded gradients, so their memory saving is lost;
  - a value that is not finite may be in one rank's part only: torch checks all ranks before a scaled step (fp16);
  - weights and gradients travel in float32, whatever autocast computes in. With PARAM_DTYPE=bf16 torch's
    ``MixedPrecisionPolicy`` sends both in bf16, half of the bytes, and REDUCE_DTYPE=fp32 keeps the gradients exact; the
    sharded weights that are stepped stay in float32;
  - torch shards only contiguous weights: with CHANNELS_LAST=1, a GPU's default, they stay N C H W beside images that
    are N H W C, and each convolution converts its own;
  - the weights in a checkpoint are collected, so any other mode can read them.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.modules.batchnorm import _BatchNorm

from bench.modes import collectives
from bench.structure import TensorList, blocks_of

# Of one tensor; torch 2.14 has given them other names.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Mode(collectives.Mode):
    replicated = False
    collective_forward = True
    contiguous_weights = "FSDP shards only contiguous tensors"
    statistics = "each rank keeps its own; a validation and a checkpoint take rank 0's; NORM=sync makes them the same"

    def wrap_model(self, model: nn.Module) -> nn.Module:
        collectives.broadcast_weights(model)
        mesh = DeviceMesh.from_group(dist.group.WORLD, self.topology.device.type)  # a new one might not be over Gloo
        self.model, self.blocks, self.norms = model, dict(blocks_of(model)), {}
        keeps = {} if self.config.reshard else {"reshard_after_forward": False}
        # The root has the parameters outside of blocks; backward begins with it, so torch does not reshard it.
        for name, part in {**self.blocks, "the rest": model}.items():
            if norms := self.norms_in(part):
                fully_shard(norms, mesh=mesh, **keeps | ({"reshard_after_forward": False} if part is model else {}))
                self.norms[f"norms of {name}"] = norms[0]  # one state for all of them
            output = TensorList(part)
            fully_shard(part, mesh=mesh, mp_policy=self.mixed_precision(part), **keeps)
            output.close(part)
        if self.config.prefetch:
            prefetch(list(self.blocks.values()), self.config.prefetch)
        if self.timeline and not self.watch(span=self.timeline.span):
            self.timeline.notes.append("this version of torch does not let FSDP's gathering and scattering be watched")
        return model

    def mixed_precision(self, part: nn.Module) -> MixedPrecisionPolicy:
        types = (None if isinstance(part, _BatchNorm) else self.config.param_dtype, self.config.reduce_dtype)
        return MixedPrecisionPolicy(*map(DTYPES.get, types))

    def norms_in(self, part: nn.Module) -> list[nn.Module]:
        """The batch norms of a block that PARAM_DTYPE leaves in float32, as their running statistics are: with weights
        of 16 bits they would not compute. They are gathered together."""
        found = [module for module in part.modules() if isinstance(module, _BatchNorm) and module.affine]
        own = [norm for norm in found if norm is not part and not isinstance(norm, FSDPModule)]
        return own if self.config.param_dtype else []

    def watch(self, span: Callable | None = None, note: Callable[[torch.Tensor], None] = lambda tensor: None) -> bool:
        """From now on each collective runs inside ``span(lane, name, bytes)``, and ``note`` gets the tensors it sends
        from and receives into. False where this version of torch does not let it."""
        if not hasattr(self.model, "set_custom_all_gather"):
            return False
        for name, part in {**self.blocks, **self.norms, "the rest": self.model}.items():
            part.set_custom_all_gather(Watched(all_gather, f"gather {name}", span, note))
            part.set_custom_reduce_scatter(Watched(reduce_scatter, f"scatter {name}", span, note))
        return True

    @contextlib.contextmanager
    def step_only_tensors(self, model, note) -> Iterator[None]:
        def gathered(block, *_) -> None:
            whole = [p for p in block.parameters() if not isinstance(p, DTensor)]
            note("gathered", whole)
            for parameter in whole:  # backward gathers it again, elsewhere
                if parameter.requires_grad:
                    undo.callback(parameter.register_hook(lambda _, p=parameter: note("gathered", [p])).remove)

        with contextlib.ExitStack() as undo:
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    undo.callback(module.register_forward_pre_hook(gathered).remove)
            self.watch(note=lambda tensor: note("gathered", [tensor]))
            yield

    @contextlib.contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)

    def facts(self, optimizer: torch.optim.Optimizer) -> dict:
        sent = self.config.reduce_dtype or self.config.param_dtype
        return {
            "gradient": self.gradient,
            "compression": "none" if sent in (None, "fp32") else sent,
            "buffers": "each rank's own" + (", of the global batch" if self.config.norm == "sync" else ""),
            "sharded": "weights, gradients, optimizer state",
            "blocks": len(self.blocks),
            **({"gathered_as": self.config.param_dtype} if self.config.param_dtype else {}),
        }

    def full_state(self, model: nn.Module) -> dict[str, torch.Tensor]:
        return {name: gather_full(tensor) for name, tensor in model.state_dict().items()}

    def full_optimizer_state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
        state = optimizer.state_dict()
        parts = state["state"].items()
        return state | {"state": {n: {key: gather_full(value) for key, value in part.items()} for n, part in parts}}

    def load_full_optimizer_state(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict) -> None:
        parameters = dict(enumerate(p for group in optimizer.param_groups for p in group["params"]))
        parts = {
            n: {key: part_of(value, parameters[n]) for key, value in entry.items()}
            for n, entry in state["state"].items()
        }
        optimizer.load_state_dict(state | {"state": parts})


def prefetch(blocks: list, ahead: int) -> None:
    for i, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 1 + ahead])
        block.set_modules_to_backward_prefetch(blocks[max(0, i - ahead) : i][::-1])


def gather_full(value):
    """A sharded tensor collected from all ranks, on the CPU; anything else as it is. Every rank calls it. Over Gloo the
    parts are collected on the CPU: on a GPU the process dies (https://github.com/pytorch/pytorch/issues/152645)."""
    if not isinstance(value, DTensor):
        return value
    return (value.cpu() if dist.get_backend() == "gloo" else value).full_tensor().cpu()


def part_of(value, parameter: torch.Tensor):
    """This rank's part of a state that is as large as its parameter; a step's number as it is."""
    if not torch.is_tensor(value) or not value.dim():
        return value
    if value.shape != parameter.shape:
        raise ValueError(f"a state of {list(value.shape)} for a parameter of {list(parameter.shape)}")
    return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)


class Watched:
    """A collective of one block, as FSDP calls it, and its memory."""

    def __init__(self, collective: Callable, name: str, span: Callable | None, note: Callable[[torch.Tensor], None]):
        self.collective, self.name, self.note = collective, name, note
        self.span = span or (lambda lane, name, nbytes: contextlib.nullcontext())

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, **options):
        with self.span("communication", self.name, max(output_tensor.nbytes, input_tensor.nbytes)):  # the whole one
            return self.collective(output_tensor, input_tensor, **options)

    def allocate(self, size, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        tensor = torch.empty(*size, dtype=dtype, device=device)
        self.note(tensor)
        return tensor
