"""MODE=zero1: DDP, and the optimizer's state sharded over the ranks: torch's ``ZeroRedundancyOptimizer``, ZeRO's first
stage (Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054).

Adam keeps two numbers for each weight, SGD with momentum one, and under DDP every rank keeps them all, the same ones.
Here each rank owns some of the parameters, shared out by size, and keeps only their state. Each step:
  1. forward, backward and all-reduce as under ddp: every rank holds all weights and the MEAN of all gradients;
  2. every rank takes the optimizer's step for the parameters that it owns, and for no others;
  3. the owner of each parameter broadcasts it: all ranks hold the same weights again.

What a rank holds of P parameters in float32 under Adam, N ranks: 4 P weights + 4 P gradients + 8 P / N of state. What
it receives in a step: as under ddp 2 (N-1)/N of the gradients, and (N-1)/N of the weights: half as much again
(``bench.formulas.received_bytes``). ZeRO's paper has no such surplus: it reduce-scatters the gradients, since a rank
needs only those of its own parameters; DDP all-reduces them.

What to notice:
  - the model is DDP's, and only the optimizer is wrapped;
  - the optimizer's step is shorter, and is followed by a wait: no broadcast is hidden behind computation;
  - a parameter has one owner: if one parameter is half of the model, the shards are unequal;
  - no rank has all of the state: a checkpoint has to collect it, which ``full_optimizer_state`` does.
"""

import inspect

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import Module

from bench.errors import UserError
from bench.modes import collectives, ddp
from bench.structure import parameters_of


class Mode(ddp.Mode):
    """DDP, with another optimizer. The optimizer's own state is that of its part, ``optimizer.optim``."""

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, model: Module) -> torch.optim.Optimizer:
        groups, kind = [dict(group) for group in optimizer.param_groups], type(optimizer)
        if (n := len(groups)) > 1:
            raise UserError(f"MODE=zero1 supports one parameter group, but groups(model) returns {n}: use ddp or fsdp")
        taken = inspect.signature(kind.__init__).parameters
        settings = {name: value for name, value in optimizer.defaults.items() if name in taken}
        sharded = ShardedOptimizer(groups, optimizer_class=kind, **settings)
        sharded.mode, sharded.sent = self, sum(parameter.nbytes for parameter in parameters_of(sharded))
        return sharded

    def facts(self, optimizer: torch.optim.Optimizer) -> dict:
        return super().facts(optimizer) | {"optimizer": type(optimizer.optim).__name__, "sharded": "optimizer state"}

    def state_of(self, optimizer: torch.optim.Optimizer) -> dict:
        return optimizer.optim.state

    def full_optimizer_state(self, model: Module, optimizer: torch.optim.Optimizer) -> dict:
        """On every rank, as any of them may write a checkpoint; torch's ``consolidate_state_dict`` collects it on one.
        The numbers of the parameters are those of every other mode."""
        numbers = {parameter: number for number, parameter in enumerate(parameters_of(optimizer))}
        mine = {
            numbers[parameter]: {name: v.cpu() if torch.is_tensor(v) else v for name, v in state.items()}
            for parameter, state in optimizer.optim.state.items()
        }
        whole = {number: state for part in collectives.gather(mine) for number, state in part.items()}
        return torch.optim.Optimizer.state_dict(optimizer) | {"state": dict(sorted(whole.items()))}

    def load_full_optimizer_state(self, model: Module, optimizer: torch.optim.Optimizer, state: dict) -> None:
        own, theirs = ([len(group["params"]) for group in groups] for groups in
                       (optimizer.param_groups, state["param_groups"]))  # fmt: skip
        if own != theirs:
            raise ValueError("it belongs to other parameters")
        if not state["state"].keys() <= set(range(sum(own))):
            raise KeyError("it has the state of a parameter that the model does not have")
        optimizer.load_state_dict(state | {"state": dict(state["state"])})  # torch drops other ranks' parts
        optimizer.state.clear()  # a second reference to the part's state


class ShardedOptimizer(ZeroRedundancyOptimizer):
    """torch's optimizer; its broadcasts are spans of the timeline, or left out by INJECT=no-exchange. sent: bytes."""

    mode: Mode
    sent: int

    def _sync_params(self) -> None:
        if self.mode.config.sync:
            with self.mode.span("communication", "weights", self.sent):
                super()._sync_params()
