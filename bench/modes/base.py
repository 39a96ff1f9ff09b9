"""The interface of a mode: this process's place in the group, and the methods that the training loop calls.

``Mode`` implements them for one process on one device. A mode that needs more overrides a method; the methods that it
does not override show the difference: DP needs no barrier, DDP does not change the optimizer, Horovod does not change
the model. Sharding, saving, metering and the loop are not here: they are written once, against ``Topology``.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from bench import mistakes
from bench.config.options import Parallel, RunConfig


@dataclass(frozen=True)
class Topology:
    """This process's place in the group. rank: 0 … world_size-1 over all machines. local_rank: on this machine.
    world_size: training processes. devices_per_process: 1, or all for DP. device: of this process's batches."""

    rank: int
    local_rank: int
    world_size: int
    devices_per_process: int
    device: torch.device

    @property
    def num_devices(self) -> int:
        return self.world_size * self.devices_per_process

    @property
    def devices(self) -> list[torch.device]:
        """Of this process, the main one first."""
        if self.device.type == "cpu":
            return [self.device]
        first = self.device.index
        return [torch.device("cuda", first + i) for i in range(self.devices_per_process)]


def device_of(config: Parallel, local_rank: int) -> torch.device:
    """The device of a local rank, made CUDA's current one. With SHARE_GPU=1 all ranks take the first GPU."""
    if config.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", 0 if config.share_gpu else local_rank)
    torch.cuda.set_device(device)
    return device


def shared_label(config: Parallel, backend: str) -> str:
    """The label in tables for ranks that share one GPU; "" for others. backend: "nccl" or "gloo"."""
    if not config.share_gpu or config.device != "cuda":
        return ""
    over = {"nccl": "NCCL", "gloo": "Gloo"}[backend]
    return f"all ranks share one GPU, over {over}: for learning, not a measurement of several GPUs"


class Mode:
    """One process, one device. Every method here is also the default of the modes that do not need it."""

    kept = None  # with MIN_DEVICES, the state that ``elastic`` passed to the attempt
    timeline = None  # in a profiled run: bench.profile.timeline.StepTimeline
    contiguous_weights = ""  # why weights and gradients cannot be N H W C as well with CHANNELS_LAST=1
    statistics = ""  # a note for the record about batch norm's running statistics
    replicated = True  # every rank holds all weights; False: they are sharded over the ranks
    period = 1  # steps from one exchange to the next
    collective_forward = False  # a forward pass is a collective: all ranks must take the same number
    label = ""  # shown in tables after the mode's name, such as "CPU replicas in threads"

    def __init__(self, config: RunConfig):
        self.config = config
        self.topology = Topology(0, 0, 1, 1, device_of(config, 0))

    def add_label(self, *texts: str) -> None:
        self.label = "; ".join(filter(None, [self.label, *texts]))

    @classmethod
    def elastic(cls, config: RunConfig, attempt: Callable) -> None:
        """MIN_DEVICES: train by ``attempt(config, kept)``. kept: this process's committed state, or None."""
        attempt(config, None)

    def commit(self, checkpoint: Callable[[], bytes]) -> None:
        """MIN_DEVICES: keep a checkpoint in memory, in addition to the file. Every rank calls it."""

    def sync_norms(self, model: nn.Module) -> nn.Module:
        """NORM=sync, before ``wrap_model``: the model with batch norms over the global batch."""
        return model

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """The model the loop calls. It is on the topology's device already."""
        return model

    def wrap_optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer the loop steps. ``model`` is the wrapped one."""
        return optimizer

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager:
        """Wraps passes whose gradients are not exchanged yet: with ACCUMULATE=k all but the last of a step's k passes,
        which exchanges their sum; with INJECT=no-exchange every pass."""
        return contextlib.nullcontext()

    def synchronize(self, optimizer: torch.optim.Optimizer) -> None:
        """After backward: when this returns, the gradients are final."""

    def step(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None = None) -> None:
        """Take the optimizer's step with final gradients. scaler: of PRECISION=fp16, skips it if a gradient is not
        finite. Averaged gradients agree on all ranks; a mode that shards gradients must reduce the scaler's result."""
        if scaler:
            scaler.step(optimizer)
        else:
            optimizer.step()

    @property
    def sums_gradients(self) -> bool:
        """INJECT=gradient-sum: the exchange does not divide the sum over the devices."""
        return self.config.mistake != "none" and mistakes.MISTAKES[self.config.mistake].sums_gradients

    @property
    def gradient(self) -> str:
        if not self.config.sync:
            return "each process its own"
        return "sum over the devices" if self.sums_gradients else "mean over the global batch"

    def facts(self, optimizer: torch.optim.Optimizer) -> dict:
        """This mode's handling of gradients and buffers, read from its live objects, for the record."""
        return {"gradient": self.gradient, "compression": "none", "buffers": "one set"}

    def buckets(self) -> list[int]:
        """Bytes of each buffer that the backend keeps in addition to the gradients."""
        return []

    # --- for a timeline (PROFILE=1), measured memory (MEMORY=1) and predicted memory --------------------------------

    def span(self, lane: str, name: str, nbytes: int | None = None) -> contextlib.AbstractContextManager:
        """A span of the timeline, if there is one, around this mode's communication or work in a step."""
        return self.timeline.span(lane, name, nbytes) if self.timeline else contextlib.nullcontext()

    def compute_in_calling_thread(self, model: nn.Module) -> None:
        """From now on this process's devices compute in one thread, the only one that is profiled."""

    def kept_replicas(self, model: nn.Module) -> Iterable[nn.Module]:
        """Copies of the plain model that stay between two steps."""
        return ()

    def step_only_tensors(
        self, model: nn.Module, note: Callable[[str, Iterable[torch.Tensor]], None]
    ) -> contextlib.AbstractContextManager:
        """Within it ``note(kind, tensors)`` gets the mode's tensors that exist only during a step: copies of the model,
        communication buffers of weights or gradients. kind: see bench/profile/memory_parts.py."""
        return contextlib.nullcontext()

    def wrap_replicas(self, models: list[nn.Module]) -> nn.Module:
        """``wrap_model`` of a simulated step (bench/predict/memory/step.py): a model for each device of the process."""
        return models[0]

    def compute_threads(self) -> int:
        """CPU threads that compute in this process at the same time."""
        return torch.get_num_threads()

    def reduce(self, value: torch.Tensor, op: str) -> torch.Tensor:
        """``value`` reduced over all processes; op: "sum", "mean" or "max". The same on every process."""
        return value

    def gather(self, item: object) -> list:
        """The items of all processes in rank order, on every process. ``item``: anything that pickles."""
        return [item]

    def barrier(self) -> None:
        """Return when all processes have called it."""

    def exchanges(self) -> dict[str, Callable]:
        """The operations that `bench network` times: each changes a tensor in place. "all_reduce": the sum over all
        processes. If the mode supports them, "ping_pong": a message from rank 0 to the last rank and back;
        "all_gather": part r from rank r; "reduce_scatter": part r is the sum, on rank r."""
        return {}

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The plain module inside what ``wrap_model`` returned."""
        return model

    def eval_model(self, model: nn.Module) -> nn.Module:
        """The model for a validation: the plain one, because DDP's forward is a collective and shares may differ."""
        return self.unwrap(model)

    def on_all_devices(self, plain: nn.Module) -> nn.Module:
        """The model for a validation of another plain model than the trained one: an average of its weights."""
        return plain

    def state_of(self, optimizer: torch.optim.Optimizer) -> dict:
        """Parameter -> its optimizer state, as far as this process holds it."""
        return optimizer.state

    # --- the full state, for checkpoints, hashes and snapshots. Every rank calls it. --------------------------------

    def full_state(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """The plain model's state dict on this rank with complete tensors; a mode that shards weights gathers them."""
        return self.unwrap(model).state_dict()

    def full_optimizer_state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
        """The optimizer's state dict with complete tensors."""
        return optimizer.state_dict()

    def load_full_optimizer_state(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict) -> None:
        """The inverse of ``full_optimizer_state``. Raises ValueError or KeyError if the state does not match."""
        optimizer.load_state_dict(state)

    def close(self) -> None:
        """Leave the group."""
