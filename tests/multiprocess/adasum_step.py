"""One rank under mpirun: a step of MODE=horovod with ADASUM=1, compared with the formula, tensor by tensor.

Prints, from rank 0, the largest difference as a share of the largest change of that tensor. The model has a tensor of
one element, one that gets no gradient on odd ranks, and enough of them that Horovod packs some together.
"""

import sys

import torch
from torch import nn

from bench import formulas
from bench.config.options import RunConfig
from bench.modes.horovod import Mode

LR = 0.1


def main() -> None:
    config = RunConfig(mode="horovod", num_devices=int(sys.argv[1]), device="cpu", adasum=True)
    mode = Mode(config)
    rank = mode.topology.rank
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 1))
    seldom = nn.Parameter(torch.ones(3))
    model.register_parameter("seldom", seldom)
    before = [p.detach().clone() for p in model.parameters()]
    model = mode.wrap_model(model)
    optimizer = mode.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9), model)

    torch.manual_seed(100 + rank)
    loss = model(torch.randn(4, 7)).square().mean() + (0 if rank % 2 else seldom.square().sum())
    gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True, materialize_grads=True)
    every = mode.gather([gradient.flatten().double().tolist() for gradient in gradients])
    optimizer.zero_grad()
    loss.backward()
    mode.synchronize(optimizer)
    mode.step(optimizer)

    worst = 0.0
    for number, (start, end) in enumerate(zip(before, model.parameters(), strict=True)):
        moved = (end.detach() - start).flatten().double()
        right = -LR * torch.tensor(formulas.adasum([own[number] for own in every]), dtype=torch.float64)
        worst = max(worst, ((moved - right).abs().max() / right.abs().max()).item())
    if rank == 0:
        print(f"largest difference {worst:.1e}")
    mode.close()


if __name__ == "__main__":
    main()
