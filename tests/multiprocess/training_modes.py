"""Run on two or three ranks: ``training_modes.py MODE RANKS RESULT``. Rank 0 writes RESULT, JSON.

It trains small networks through a mode's own doors, as the training loop does, and beside each, in the same process,
one network on the joined batch. All in float64, where equal means equal to 1e-12.
"""

import contextlib
import dataclasses
import inspect
import json
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from bench.config.options import RunConfig
from bench.modes import load_mode
from bench.training.averages import Averages

STEPS = 4
PASSES = 3  # of a step, where gradients are accumulated
PER_RANK = 6  # images of a pass
RESET = {"norm": "batch", "accumulate": 1, "static_graph": False, "gradient_as_bucket_view": False, "overlap": True,
         "batched_grad_copy": False, "compression": "none", "sync": True, "fused": False, "epochs": 0, "ema": None,
         "swa": None}  # fmt: skip
BAD_STEP = 1  # in which the last rank's gradient is not finite

# Of newer versions of torch alone.
BATCHED = [{"batched_grad_copy": True}] * ("batched_grad_copy" in inspect.signature(DistributedDataParallel).parameters)

# What each mode is asked to accumulate under. fp16 on the wire rounds; without exchange every rank is alone.
ACCUMULATING = {
    "ddp": [{}, {"fused": True}, {"static_graph": True, "gradient_as_bucket_view": True}, {"overlap": False},
            *BATCHED, {"compression": "fp16"}, {"sync": False}],
    "horovod": [{}, {"fused": True}, {"overlap": False}, {"compression": "fp16"}, {"sync": False}],
    "single": [{}],
    "dp": [{}],
}  # fmt: skip
SCALING = [{}, {"fused": True}, {"compression": "fp16"}, {"overlap": False}]


def network(norm: bool, seed: int = 0) -> nn.Module:
    """A small convolutional network with two branches, so that two batch norms wait for the same gradient."""
    torch.manual_seed(seed)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Conv2d(3, 8, 3, bias=False), nn.Conv2d(3, 8, 3, bias=False)
            self.norm1 = nn.BatchNorm2d(8) if norm else nn.Identity()
            self.norm2 = nn.BatchNorm2d(8) if norm else nn.Identity()
            self.head = nn.Linear(8 * 16, 5)

        def forward(self, x):
            return self.head((self.norm1(self.left(x)).tanh() + self.norm2(self.right(x)).tanh()).flatten(1))

    return Net().double()


def joined(ranks: int, passes: int = 1) -> list:
    """A batch of all ranks for each step, in the ranks' order, each rank's with a mean and a deviation of its own."""
    made = torch.Generator().manual_seed(1)
    which = torch.arange(ranks).repeat_interleave(PER_RANK * passes)[:, None, None, None]
    shape = (len(which), 3, 6, 6)
    return [
        (torch.randn(shape, generator=made).double() * (1 + which) + 3 * which,
         torch.randint(5, (len(which),), generator=made))
        for _ in range(STEPS)
    ]  # fmt: skip


def share(batch, topology):
    """A rank's images and labels."""
    return tuple(tensor.chunk(topology.world_size)[topology.rank] for tensor in batch)


def backward(mode, model, images, labels, scale=None) -> torch.Tensor:
    """All passes of a step, as the loop makes them; returns the outputs."""
    passes, outputs = mode.config.accumulate, []
    for i, (x, y) in enumerate(zip(images.chunk(passes), labels.chunk(passes), strict=True), start=1):
        later = i < passes or not mode.config.sync
        with mode.no_sync(model) if later else contextlib.nullcontext():
            outputs.append(model(x))
            loss = nn.functional.cross_entropy(outputs[-1], y) / passes
            (scale(loss) if scale else loss).backward()
    return torch.cat(outputs).detach()


def wrapped(mode, model, lr: float = 0.1):
    """Model and optimizer as the loop uses them."""
    model = mode.wrap_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, fused=mode.config.fused)
    return model, mode.wrap_optimizer(optimizer, model)


def flat(tensors) -> torch.Tensor:
    """All in one vector."""
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def largest(mode, a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest absolute difference on any rank."""
    return float(mode.reduce((a - b).abs().max(), "max"))


def equal_on_all(mode, value) -> bool:
    """Whether every rank has this value; tensors bit by bit."""
    values = mode.gather(value.tolist() if isinstance(value, torch.Tensor) else value)
    return all(other == values[0] for other in values)


# --- NORM=sync ------------------------------------------------------------------------------------------------------


def train_norms(mode) -> dict:
    """How far a network with batch norm is from one process on the joined batch, on the rank where it is furthest."""
    topology = mode.topology
    alone = network(norm=True)
    model = network(norm=True, seed=topology.rank)
    if mode.config.norm == "sync":
        model = mode.sync_norms(model)
    model, optimizer = wrapped(mode, model)
    plain, reference = mode.unwrap(model), torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    apart = Counter()
    for batch in joined(topology.world_size):
        reference.zero_grad()
        optimizer.zero_grad()
        expected = alone(batch[0])
        nn.functional.cross_entropy(expected, batch[1]).backward()
        outputs = backward(mode, model, *share(batch, topology))
        mode.synchronize(optimizer)
        here = {
            "outputs": (outputs, share((expected,), topology)[0].detach()),
            "gradients": (flat(p.grad for p in plain.parameters()), flat(p.grad for p in alone.parameters())),
            "buffers": (flat(plain.buffers()), flat(alone.buffers())),
        }
        for name, (a, b) in here.items():
            apart[name] = max(apart[name], largest(mode, a, b))
        reference.step()
        mode.step(optimizer)
    apart["weights"] = largest(mode, flat(plain.parameters()), flat(alone.parameters()))
    plain.eval()
    alone.eval()
    if topology.rank == 0:  # evaluation asks nobody: one rank alone may do it
        apart["evaluation"] = float((plain(batch[0]) - alone(batch[0])).detach().abs().max())
    return {"apart": apart, "class": type(plain.norm1).__name__, "keys": list(plain.state_dict()),
            "keys alone": list(alone.state_dict()), "label": mode.label, "facts": mode.facts(optimizer)}  # fmt: skip


# --- EMA and SWA ----------------------------------------------------------------------------------------------------


def train_averaged(mode) -> dict:
    """How far the averages of each rank are from those of one process on the joined batch, batch norm included."""
    topology, alone = mode.topology, network(norm=True)
    model, optimizer = wrapped(mode, mode.sync_norms(network(norm=True, seed=topology.rank)))
    plain, reference = mode.unwrap(model), torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    averages = Averages(mode.config, mode, model)
    ema = AveragedModel(alone, multi_avg_fn=get_ema_multi_avg_fn(mode.config.ema), use_buffers=True)
    swa, batches = AveragedModel(alone), joined(topology.world_size)
    for step, batch in enumerate(batches):
        reference.zero_grad()
        optimizer.zero_grad()
        nn.functional.cross_entropy(alone(batch[0]), batch[1]).backward()
        backward(mode, model, *share(batch, topology))
        mode.synchronize(optimizer)
        reference.step()
        mode.step(optimizer)
        averages.step_taken()
        ema.update_parameters(alone)
        if step % 2:
            averages.epoch_ended(trainer_of(mode), 1 + step // 2, [(*share(batch, topology), []) for batch in batches])
            swa.update_parameters(alone)
            update_bn([images for images, _ in batches], swa.module)
    found = {"ema": (averages.models["ema"].module, ema.module), "swa": (averages.models["swa"].module, swa.module)}
    states = {name: [numbers(one) for one in pair] for name, pair in found.items()}
    return {"apart": {name: largest(mode, *pair) for name, pair in states.items()},
            "moved": {name: largest(mode, pair[0], numbers(plain)) for name, pair in states.items()},
            "replicas equal": {name: equal_on_all(mode, flat(pair[0].parameters())) for name, pair in found.items()},
            }  # fmt: skip


def numbers(model: nn.Module) -> torch.Tensor:
    """Parameters and buffers in one vector, without the counters of batches."""
    return flat(tensor for tensor in model.state_dict().values() if tensor.is_floating_point())


def trainer_of(mode) -> SimpleNamespace:
    """What the averages ask of a Trainer."""
    return SimpleNamespace(
        autocast=contextlib.nullcontext(), status=SimpleNamespace(phase=lambda name: None),
        config=SimpleNamespace(per_device_batch=PER_RANK), device=mode.topology.device,
        workload=SimpleNamespace(prepare=lambda inputs: inputs, forward=lambda model, inputs, targets: model(inputs)),
    )  # fmt: skip


# --- ACCUMULATE -----------------------------------------------------------------------------------------------------


def train_passes(mode, exchanges: Sequence = ()) -> dict:
    """PASSES passes a step, and one process with the whole of each step's batch; a network without norm.

    With INJECT=no-exchange each rank is compared with one process on the rank's own share.
    """
    topology = mode.topology
    model, optimizer = wrapped(mode, network(norm=False))
    alone = network(norm=False)
    reference = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    facts = mode.facts(optimizer)
    exchanging = facts["gradient"] == "mean over the global batch"
    counts = []
    for batch in joined(topology.world_size, PASSES):
        mine = share(batch, topology)
        reference.zero_grad()
        images, labels = batch if exchanging else mine
        nn.functional.cross_entropy(alone(images), labels).backward()
        reference.step()
        optimizer.zero_grad()
        before = len(exchanges)
        backward(mode, model, *mine)
        mode.synchronize(optimizer)
        mode.step(optimizer)
        counts.append(len(exchanges) - before)
    weights = flat(mode.unwrap(model).parameters())
    return {"apart": largest(mode, weights, flat(alone.parameters())), "replicas equal": equal_on_all(mode, weights),
            "exchanges": counts, "moved": float((weights - flat(network(False).parameters())).abs().max()),
            "parameters": len(list(alone.parameters())), "facts": facts}  # fmt: skip


def count_exchanges(mode) -> list:
    """A list that grows by one for each tensor or group of tensors that this process gives to be reduced from now on:
    DDP's own reductions of a bucket cannot be seen from Python, and its hooks replace them."""
    exchanges = []

    def counting(function):
        def call(*arguments, **options):
            exchanges.append(1)
            return function(*arguments, **options)

        return call

    if mode.config.mode == "horovod":
        import horovod.torch as hvd
        import horovod.torch.optimizer

        horovod.torch.optimizer.allreduce_async_ = counting(horovod.torch.optimizer.allreduce_async_)
        hvd.grouped_allreduce_ = counting(hvd.grouped_allreduce_)
    elif mode.config.mode == "ddp":
        register = nn.parallel.DistributedDataParallel.register_comm_hook
        wrap = mode.wrap_model

        def counted(model, state, hook):
            def call(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
                exchanges.append(1)
                return hook(state, bucket)

            register(model, state, call)

        def wrap_and_count(model):
            nn.parallel.DistributedDataParallel.register_comm_hook = counted
            model = wrap(model)
            if mode.hook is None:
                from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

                model.register_comm_hook(None, allreduce_hook)
            return model

        mode.wrap_model = wrap_and_count
    return exchanges


# --- PRECISION=fp16 -------------------------------------------------------------------------------------------------


def train_scaled(mode) -> dict:
    """STEPS steps with a scaled loss, and in one of them an infinite gradient on the last rank alone."""
    topology = mode.topology
    model, optimizer = wrapped(mode, network(norm=False))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    alone = network(norm=False)
    reference = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    parameters = list(mode.unwrap(model).parameters())
    moved, scales = [], []
    for step, batch in enumerate(joined(topology.world_size, mode.config.accumulate)):
        bad = step == BAD_STEP and topology.rank == topology.world_size - 1
        before = flat(parameters)
        optimizer.zero_grad()
        backward(mode, model, *share(batch, topology), lambda x, bad=bad: scaler.scale(x) * (torch.inf if bad else 1))
        mode.synchronize(optimizer)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parameters, 0.5)
        mode.step(optimizer, scaler)
        scaler.update()
        moved.append(not torch.equal(before, flat(parameters)))
        scales.append(scaler.get_scale())
        if step != BAD_STEP:
            reference.zero_grad()
            nn.functional.cross_entropy(alone(batch[0]), batch[1]).backward()
            nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
            reference.step()
    weights = flat(parameters)
    return {"moved": moved, "scales": scales, "replicas equal": equal_on_all(mode, weights),
            "ranks agree": equal_on_all(mode, moved) and equal_on_all(mode, scales),
            "apart": largest(mode, weights, flat(alone.parameters()))}  # fmt: skip


# --- Adam under Horovod ---------------------------------------------------------------------------------------------


def train_adam(mode, broadcast: bool) -> float:
    """How far an Adam wrapped by Horovod ends from one process on the joined batch. broadcast: with
    ``broadcast_optimizer_state`` where tutorials call it, on the fresh wrapped optimizer."""
    import horovod.torch as hvd

    model, alone = network(norm=False), network(norm=False)
    reference = torch.optim.Adam(alone.parameters(), lr=0.01)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Average)
    if broadcast:
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for batch in joined(mode.topology.world_size):
        for net, its, (images, labels) in (
            (model, optimizer, share(batch, mode.topology)),
            (alone, reference, batch),
        ):
            its.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            its.step()
    return largest(mode, flat(model.parameters()), flat(alone.parameters()))


# --------------------------------------------------------------------------------------------------------------------


def main() -> None:
    name, ranks, path = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    warnings.simplefilter("error", FutureWarning)
    mode = load_mode(name)(RunConfig(mode=name, num_devices=ranks, device="cpu", threads=ranks, timeout=60))
    result = {"norms": {}, "passes": {}, "scaled": {}}
    for norm in ("batch", "sync"):
        result["norms"][norm] = train_norms(asked(mode, norm=norm))
    result["averaged"] = train_averaged(asked(mode, norm="sync", epochs=2, ema=0.7, swa=1))
    for options in SCALING:
        result["scaled"][text(options)] = train_scaled(asked(mode, accumulate=2, **options))
    if name == "horovod":
        result["adam"] = {which: train_adam(mode, which == "broadcast") for which in ("plain", "broadcast")}
    exchanges = count_exchanges(mode)
    for options in ACCUMULATING[name]:
        for passes in (1, PASSES):
            found = train_passes(asked(mode, accumulate=passes, **options), exchanges)
            result["passes"].setdefault(text(options), {})[passes] = found
    if mode.topology.rank == 0:
        path.write_text(json.dumps(result))
    mode.barrier()
    mode.close()


def asked(mode, **options):
    """The mode as if its process had been started with these options."""
    mode.config = dataclasses.replace(mode.config, **RESET | options)
    return mode


def text(options: dict) -> str:
    """{"overlap": False} -> "overlap=0"; "plain" for none."""
    return " ".join(f"{k}={int(v) if isinstance(v, bool) else v}" for k, v in options.items()) or "plain"


if __name__ == "__main__":
    main()
