"""Run by ``horovodrun`` on two ranks: what becomes of an Adam whose state is broadcast. Rank 0 prints facts.

distance without, distance with: how far two ranks end from one process on the joined batch, without and with
``broadcast_optimizer_state`` where tutorials call it, on the fresh wrapped optimizer.
"""

import copy

import horovod.torch as hvd
import torch
from torch import nn

STEPS = 5


def train(model: nn.Module, optimizer, batches) -> list[torch.Tensor]:
    """The parameters after a step on each batch."""
    for images, targets in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(images), targets).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def distance(a, b) -> float:
    """The largest absolute difference of two lists of tensors."""
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


def main() -> None:
    hvd.init()
    torch.manual_seed(0)
    start = nn.Linear(4, 3)
    joined = [(torch.randn(8, 4), torch.randn(8, 3)) for _ in range(STEPS)]
    mine = [(x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()]) for x, y in joined]

    model = copy.deepcopy(start)
    alone = train(model, torch.optim.Adam(model.parameters(), lr=0.01), joined)
    for call_it in (False, True):
        model = copy.deepcopy(start)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Average)
        if call_it:
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        together = train(model, optimizer, mine)
        if hvd.rank() == 0:
            print(f"distance {'with' if call_it else 'without'}: {distance(alone, together)}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
