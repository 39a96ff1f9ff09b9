"""Build the parts of a training: the process group, the data, the model, the trainer and its epochs.

The order matters. Changes of the model's modules, weights or frozen parameters come before the mode's wrapper, which
reads them once; the optimizer gets the wrapped model's parameters.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from bench.config.options import RunConfig, to_dict
from bench.errors import UserError
from bench.launch.devices import LEAST_FREE_GIB
from bench.measure import cgroup
from bench.modes import load_mode
from bench.modes.base import Mode
from bench.process.heartbeat import StatusWriter
from bench.profile.timeline import StepTimeline
from bench.record.privacy import without_names
from bench.training.checkpoint import LATEST, Checkpoint, find, from_memory, read
from bench.training.epochs import Epochs
from bench.training.loop import Trainer, build_optimizer, learning_rates
from bench.training.replicas import NOTE, Replicas
from bench.training.script import Script, make_script
from bench.training.trackers import open_tracker
from bench.training.validation import validate_replica
from bench.workload import load_workload, weights
from bench.workload.flops import count_flops
from bench.workload.freezing import train_mode
from bench.workload.loader import training_batches, validation_batches


@dataclass(frozen=True)
class Data:
    """val_set, val_batches (this rank's share): None without a validation set. epoch_images: examples that an epoch
    trains on, over all devices."""

    train_set: Dataset
    val_set: Dataset | None
    val_batches: DataLoader | None
    epoch_images: int


def join(config: RunConfig, kept=None) -> Script:
    torch.set_num_threads(config.threads_per_process)
    mode = load_mode(config.mode)(config)
    mode.kept = kept
    if config.memory_gib and config.device == "cuda":
        for device in mode.topology.devices:
            limit_cuda_memory(device, config.memory_gib)
    return make_script(config, mode, load_workload(config, mode.topology.device), config.mistake)


def limit_cuda_memory(device: torch.device, gib: float) -> None:
    """MEMORY_GIB on a GPU: the memory that CUDA's context leaves of it is all that torch's allocator takes."""
    total = torch.cuda.get_device_properties(device).total_memory
    share = max(0.0, gib - LEAST_FREE_GIB) * 2**30 / total
    torch.cuda.set_per_process_memory_fraction(min(1.0, share), device)


def load(config: RunConfig, script: Script, status: StatusWriter) -> Data:
    def say(sentence: str) -> None:
        print(sentence, flush=True)
        status.phase("preparing the data")  # shows progress to the launcher

    train_set, val_set = script.workload.load(script.mode, say)
    script.prepare_data(train_set)
    batches = validation_batches(config, script.topology, val_set) if val_set is not None else None
    return Data(train_set, val_set, batches, script.epoch_images(len(train_set)))


def build_trainer(config: RunConfig, script: Script, data: Data, status: StatusWriter, run_dir: Path) -> tuple:
    """(Trainer, Checkpoint | None that it resumes)."""
    notes, mode = [], script.mode
    checkpoint = resumed_from(config, mode, run_dir)
    model = build_model(config, script, data, notes.append, checkpoint)
    recipe, plain = script.recipe(), mode.unwrap(model)
    optimizer = mode.wrap_optimizer(build_optimizer(recipe, plain, script.workload.groups(plain)), model)
    lr_of = learning_rates(recipe, data.epoch_images)
    several_devices = config.device == "cuda" and config.num_processes < config.num_devices
    if several_devices and (held := getattr(data.train_set, "bytes_on_device", 0)):
        gib = held / 2**30
        notes.append(f"DATA={config.data} is only on the first device, and takes {gib:.2f} GiB of its memory")
    trainer = Trainer(config, mode, model, optimizer, lr_of, status, run_dir, script)
    trainer.notes += notes
    return trainer, checkpoint


def resumed_from(config: RunConfig, mode: Mode, run_dir: Path) -> Checkpoint | None:
    """The checkpoint to resume: after an interruption (MIN_DEVICES) the run's own, else RESUME's."""
    if mode.kept and mode.kept.checkpoint:
        return Checkpoint(from_memory(mode.kept.checkpoint), run_dir / LATEST)
    if config.elastic and (run_dir / LATEST).exists():
        path = run_dir / LATEST
    elif config.resume:
        path = Path(mode.gather(str(find(config.resume)))[0])  # all ranks read the same
    else:
        return None
    return Checkpoint(read(path), path)


def build_model(
    config: RunConfig, script: Script, data: Data, say: Callable[[str], None], checkpoint: Checkpoint | None = None
) -> nn.Module:
    """The wrapped model, with the weights of a checkpoint if there is one. say: takes notes for the record."""
    mode, topology = script.mode, script.topology
    model = script.build_model(script.workload.num_outputs, say)
    require_room(config, mode, model)
    if topology.rank == 0 and not config.evaluate:
        script.workload.flops = count_flops(script.workload, model, data.train_set, say)
    if checkpoint:
        weights.load_weights(model, checkpoint.state["model"], checkpoint.path)
    if config.profile:  # before the norms, whose sums over ranks it shows
        mode.timeline = StepTimeline(topology.device, topology.devices)
    if config.norm == "sync":
        model = mode.sync_norms(model)
    elif mode.statistics and any(name.endswith("running_mean") for name, _ in model.named_buffers()):
        say(f"batch norm's running statistics are not parameters: {mode.statistics}")
    last = config.channels_last and not mode.contiguous_weights
    if config.channels_last and not last:
        say(f"images are stored as N H W C, weights as N C H W: {mode.contiguous_weights}")
    model = model.to(topology.device, memory_format=torch.channels_last if last else None)
    train_mode(model)
    script.workload.check(model, data.train_set)
    if config.compile:
        model.compile(mode=config.compile_mode)
    return mode.wrap_model(model)


def require_room(config: RunConfig, mode: Mode, model: nn.Module) -> None:
    """Raise UserError if weights and gradients exceed a GPU's memory, or on a CPU if the gradients of all processes
    exceed this machine's free memory. model: on the CPU, before it is moved."""
    held = sum(p.nbytes for p in model.parameters())
    gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    shards = 1 if mode.replicated else mode.topology.num_devices
    numbers = sum(p.numel() for p in model.parameters())
    words = f"MODEL={config.model} is too large: {numbers:,} parameters and their gradients take"
    if config.device == "cuda":
        have = torch.cuda.get_device_properties(mode.topology.device).total_memory
        needed = (held + gradients) // shards
        if needed > have:
            has = f"but a device has {have / 2**30:.1f} GiB: use a smaller model"
            raise UserError(f"{words} {needed / 2**30:.1f} GiB, {has}")
        return
    import psutil

    processes = max(1, mode.topology.world_size // max(1, len(config.machines)))
    needed, free = processes * gradients // shards, psutil.virtual_memory().available
    if needed > (free := min(free, cgroup.memory_limit() or free)):
        raise UserError(f"{words} {2 * held / 2**30:.1f} GiB in each of {processes} processes, but this machine has "
                        f"{free / 2**30:.1f} GiB free for gradients: use a smaller model or fewer GPUS")  # fmt: skip


def prepare_epochs(trainer: Trainer, checkpoint: Checkpoint | None, data: Data) -> Epochs:
    config, topology = trainer.config, trainer.mode.topology
    steps = len(data.train_set) // config.global_batch  # complete ones of an epoch
    examples = training_batches(config, topology, data.train_set, steps, keep=False) if config.swa else ()
    epochs = Epochs(trainer, data.epoch_images, data.val_batches, examples)
    if checkpoint:
        epochs.resume(checkpoint)
    if config.track != "none":
        known, note = to_dict(without_names(config)), trainer.notes.append
        epochs.add_tracker(open_tracker(config.track, trainer.run_dir, known, topology.rank, note))
    if config.replicas:
        whole_val = validation_batches(config, topology, data.val_set, whole=True)
        once = training_batches(config, topology, data.train_set, steps)
        judge = functools.partial(validate_replica, trainer, whole_val)
        epochs.replicas = Replicas(trainer, epochs.ends()[-1] - trainer.step, judge, once)
        trainer.notes.append(NOTE)
    return epochs
