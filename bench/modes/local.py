"""MODE=local: local SGD. Each rank trains separately for LOCAL_STEPS steps, then the weights are averaged.

WARNING: this is another algorithm. Every other way to train here takes the step that one process on the joined batch
would take; this one does not, and no comparison with it is fair. It sends least (Stich 2019,
https://arxiv.org/abs/1805.09767).

At the start rank 0's weights and buffers are sent to all. Each step:
  1. forward, backward and the optimizer's step, on the rank's own batch with its own gradient: nothing is exchanged;
  2. after every LOCAL_STEPS steps one all-reduce: weights and buffers become their mean over the ranks.

What it receives in a step: 2 (N-1)/N of the weights, divided by LOCAL_STEPS (``bench.formulas.received_bytes``).

What to notice:
  - with LOCAL_STEPS=1 and SGD it is ddp's update: the mean of w - lr g_r is w - lr times the mean of g_r, and momentum
    is linear, too. With Adam, which divides by a gradient's own size, and with CLIP_NORM it is not;
  - with more steps the ranks drift apart, and their mean is not where one process would be. `make compare accuracy
    MODES=single,ddp,local` measures the cost;
  - between two averages there is no ONE model. The mean of all ranks is validated and saved; training is not changed;
  - momentum stays each rank's own, and a checkpoint has rank 0's.
"""

import copy

import torch
import torch.distributed as dist
from torch import nn

from bench.modes import collectives


class Mode(collectives.Mode):
    label = "each rank steps separately, weights are averaged every few steps: not the update of one process"

    @property
    def period(self) -> int:
        return self.config.local_steps if self.config.sync else 1

    def wrap_model(self, model: nn.Module) -> nn.Module:
        collectives.broadcast_weights(model)
        self.averaged = [t for t in [*model.parameters(), *model.buffers()] if t.is_floating_point()]
        self.steps = 0
        return model

    def step(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None = None) -> None:
        super().step(optimizer, scaler)  # a rank whose scaler skips it averages all the same: the others wait for it
        self.steps += 1
        if self.steps % self.config.local_steps == 0 and self.config.sync:
            with self.span("communication", "weights", sum(tensor.nbytes for tensor in self.averaged)):
                self.average()

    @torch.no_grad()
    def average(self) -> None:
        flat = torch.cat([tensor.reshape(-1).float() for tensor in self.averaged])
        dist.all_reduce(flat)
        parts = flat.div_(self.topology.world_size).split([tensor.numel() for tensor in self.averaged])
        for tensor, part in zip(self.averaged, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def facts(self, optimizer: torch.optim.Optimizer) -> dict:
        every = f"weights averaged every {self.config.local_steps} steps" if self.config.sync else ""
        return {
            "gradient": "; ".join(filter(None, ["each process its own", every])),
            "compression": "none",
            "buffers": "averaged with the weights" if every else "each rank's own",
        }

    def full_state(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """The mean over the ranks; what counts batches is rank 0's. In float64 the mean of equal numbers is exact."""
        return {
            name: self.reduce(tensor.double(), "mean").to(tensor.dtype) if tensor.is_floating_point() else tensor
            for name, tensor in model.state_dict().items()
        }

    def eval_model(self, model: nn.Module) -> nn.Module:
        mean = copy.deepcopy(model)
        mean.load_state_dict(self.full_state(model))
        return mean
