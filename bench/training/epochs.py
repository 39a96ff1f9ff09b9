"""Training by epochs: the untimed work between stretches of steps (loop.py). After an epoch: validation
(validation.py), its row for the record, a checkpoint; another checkpoint after every CHECKPOINT_STEPS."""

import functools
import itertools
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from bench.config.options import LABELS, RunConfig, names, to_dict, unchecked
from bench.config.peak_flops import peak_of
from bench.config.sections import Extras, Files, Measuring, Resources
from bench.config.values import parse_keep
from bench.config.workloads import workload_of
from bench.errors import UserError
from bench.process.heartbeat import epochs_path, starts_path
from bench.record.describe import epoch_line
from bench.record.privacy import without_names
from bench.training import checkpoint
from bench.training.checkpoint import BEST, LATEST, Checkpoint
from bench.training.loop import Trainer
from bench.training.progress import memory_gib
from bench.training.trackers import Curves, NoTracker
from bench.training.validation import finite, load_buffers, means, to_cpu, validate, validate_averages
from bench.workload.sharding import steps_of_epochs
from bench.workload.weights import reason

# Options that do not change the results of a resumed run; the checkpoint's weights replace PRETRAINED's.
MAY_CHANGE = (*LABELS, *names(Measuring, Resources, Files, Extras), "launcher", "fault", "workers", "in_memory",
              "pretrained")  # fmt: skip


class Epochs:
    """num_images: of the training set. val_batches: this process's share of the validation set, or None. examples: this
    process's training batches of one epoch, for the batch norms of SWA."""

    def __init__(self, trainer: Trainer, num_images: int, val_batches: Iterable | None, examples: Iterable = ()):
        self.trainer, self.num_images, self.val_batches = trainer, num_images, val_batches
        self.examples = examples
        self.config: RunConfig = trainer.config
        self.metric, self.examples_are = trainer.workload.info.metrics[0], trainer.workload.info.batched
        self.rows = []  # one per epoch, as in the record
        self.elapsed_before_s = 0.0  # in the runs that this one resumes
        self.rng = None  # the random state to restore when training begins
        self.curves = self.replicas = None

    def add_tracker(self, tracker: NoTracker) -> None:
        """Every rank has the hook, though only rank 0 has a tracker: all do the same work in a step."""
        device, config = self.trainer.device, self.config
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        peak = config.peak_tflops or peak_of(gpu, config.precision)
        self.curves = Curves(tracker, config, self.trainer.workload.flops.get("flops_per_example"), peak)
        self.trainer.hooks.append(self.curves)

    def ends(self) -> list[int]:
        """The last step of each remaining epoch."""
        trainer, config = self.trainer, self.config
        ends = steps_of_epochs(self.num_images, config.epochs, config.global_batch, trainer.step, trainer.images_seen)
        return ends[len(self.rows) :]

    def train(self, stream: Iterator, timed_from: int, start_timing) -> None:
        """Train to the end of the last epoch. start_timing: called before step ``timed_from``."""
        trainer, ends = self.trainer, self.ends()
        saves = self.saves(ends[-1])
        if self.rng is not None:
            put_rng(self.rng, trainer.mode.topology.devices)
        if self.config.elastic:
            self.report_start()
        self.began, timing = time.perf_counter(), False
        for stop in sorted({*ends, *saves, timed_from}):
            trainer.train_steps(stream, stop - trainer.step)
            if stop in ends:
                self.end_epoch()
            elif stop in saves:
                self.write_checkpoint()
            if stop == timed_from:
                start_timing()
                timing = True
            elif timing:
                trainer.clock.resume()
        if self.replicas:
            self.replicas.end_training()

    def report_start(self) -> None:
        """MIN_DEVICES: report to the launcher where training begins, at the start or after an interruption."""
        trainer, topology = self.trainer, self.trainer.mode.topology
        trainer.status.step(trainer.step)
        if topology.rank == 0:
            start = {"step": trainer.step, "images_seen": trainer.images_seen, "devices": topology.num_devices,
                     "global_batch": self.config.global_batch, "num_images": self.num_images}  # fmt: skip
            with starts_path(trainer.run_dir).open("a") as file:
                file.write(json.dumps(start) + "\n")
            epochs_path(trainer.run_dir).write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def saves(self, end: int) -> range:
        every = self.config.checkpoint_steps or end
        return range((self.trainer.step // every + 1) * every, end, every)

    def end_epoch(self) -> None:
        trainer = self.trainer
        trainer.count_left_out()
        row = {"epoch": len(self.rows) + 1, "steps": trainer.step, "images_seen": trainer.images_seen,
               "train_loss": finite(self.mean_loss_sum() / max(1, trainer.loss_steps)),
               "lr": trainer.lr_of(trainer.images_seen - self.config.global_batch)}  # fmt: skip
        trained = means(trainer, trainer.mode.reduce(trainer.counts, "sum"))
        row |= {f"train_{metric.key}": trained[metric.key] for metric in trainer.workload.info.metrics}
        trainer.counts.zero_()
        trainer.loss_sum.zero_()
        trainer.loss_steps = 0
        trained_s = self.elapsed_s()
        if self.val_batches is not None:
            row |= validate(trainer, self.val_batches)
        if trainer.averages:
            trainer.averages.epoch_ended(trainer, row["epoch"], self.examples)
            if self.val_batches is not None:
                row |= validate_averages(trainer, self.val_batches, trainer.averages.ready())
        if self.replicas:
            self.replicas.end_epoch()
        row |= {"elapsed_s": self.elapsed_s(), "validate_s": self.elapsed_s() - trained_s,
                "skipped_steps": trainer.skipped_steps}  # fmt: skip
        value, earlier = row.get(self.metric.key), self.metric.best(row.get(self.metric.key) for row in self.rows)
        best = value is not None and row["loss"] is not None and self.metric.improves(value, earlier)
        self.rows.append(row)
        trainer.progress.resume(trainer.step)
        if self.curves:
            memory = trainer.mode.gather([memory_gib(device) for device in trainer.mode.topology.devices])
            self.curves.epoch_ended(trainer.step, row, list(itertools.chain(*memory)))
        if self.config.checkpoint:
            self.write_checkpoint(ends_epoch=True, best=best)
        if trainer.mode.topology.rank == 0:
            print(epoch_line(row, trainer.workload.info), flush=True)  # into its log
            with epochs_path(trainer.run_dir).open("a") as file:
                file.write(json.dumps(row) + "\n")

    def mean_loss_sum(self) -> float:
        return self.trainer.mode.reduce(self.trainer.loss_sum, "mean").item()

    def elapsed_s(self) -> float:
        """Seconds since the first step, over all runs that this one resumes."""
        return self.elapsed_before_s + time.perf_counter() - self.began

    # --- checkpoints ------------------------------------------------------------------------------------------

    def write_checkpoint(self, ends_epoch: bool = False, best: bool = False) -> None:
        """Rank 0 writes RUN_DIR/latest.pt atomically. best: also best.pt. ends_epoch: also the epoch's own file, as
        KEEP_CHECKPOINTS says."""
        trainer = self.trainer
        trainer.status.phase("writing a checkpoint")
        model = trainer.mode.unwrap(trainer.model)
        mine = to_cpu({"buffers": dict(model.named_buffers()), "rng": get_rng(trainer.mode.topology.devices)})
        if trainer.averages:
            mine["averages"] = to_cpu(trainer.averages.buffers())
        mine["skipped_images"] = sorted(trainer.skipped_images)
        ranks = trainer.mode.gather(mine)  # batch norm's statistics may differ by rank
        loss_sum, counts = self.mean_loss_sum(), trainer.mode.reduce(trainer.counts, "sum")
        latest, state = trainer.run_dir / LATEST, self.state()
        state |= {"loss_sum": loss_sum, "counts": to_cpu(counts), "ranks": ranks}
        trainer.script.save(latest, state)
        if trainer.mode.topology.rank == 0:
            if best:
                checkpoint.keep(latest, trainer.run_dir / BEST)
            if ends_epoch and self.config.keep:
                checkpoint.keep_epoch(latest, len(self.rows), parse_keep(self.config.keep))
        trainer.mode.barrier()  # a rank that runs ahead would be reported instead of rank 0 with its full disk
        trainer.mode.commit(functools.partial(checkpoint.in_memory, state))

    def state(self) -> dict:
        """Everything needed to resume, except each rank's own parts. Every rank calls it."""
        trainer, mode = self.trainer, self.trainer.mode
        trainer.count_left_out()
        return {
            "format": checkpoint.FORMAT,
            "version": checkpoint.VERSION,
            "model": mode.full_state(trainer.model),
            "optimizer": mode.full_optimizer_state(trainer.model, trainer.optimizer),
            "scaler": trainer.scaler.state_dict(),
            "step": trainer.step,
            "images_seen": trainer.images_seen,
            "loss_steps": trainer.loss_steps,
            "guard": trainer.guard.mean if trainer.guard else None,
            "skipped_steps": trainer.skipped_steps,
            "elapsed_s": self.elapsed_s(),
            "accuracy": self.rows,
            "num_images": self.num_images,
            "world_size": mode.topology.world_size,
            "config": to_dict(without_names(self.config)),
            "classes": trainer.workload.classes,
            **(trainer.averages.state() if trainer.averages else {}),
        }

    def resume(self, resumed: Checkpoint) -> None:
        """Restore everything except the weights, which were loaded before the model was wrapped. Raises UserError for a
        checkpoint of other data or of another optimizer."""
        trainer, rank, state, path = self.trainer, self.trainer.mode.topology.rank, resumed.state, resumed.path
        self.check_resumable(state, path)
        load_optimizer(trainer, state["optimizer"], path)
        try:
            self.put_back(state, rank)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"RESUME: the content of {path} does not fit this run ({reason(error)})") from None
        best = checkpoint.best_of(path, self.rows, self.metric)
        if rank == 0 and best and best.parent != trainer.run_dir:  # until this run has a better one
            checkpoint.keep(best, trainer.run_dir / BEST)
        trainer.notes += differences(state, self.config, trainer.mode.topology.world_size)

    def put_back(self, state: dict, rank: int) -> None:
        trainer = self.trainer
        if trainer.scaler.is_enabled() and state["scaler"]:
            trainer.scaler.load_state_dict(state["scaler"])
        if trainer.guard:
            trainer.guard.mean = state["guard"]
        trainer.step, trainer.images_seen = state["step"], state["images_seen"]
        trainer.skipped_steps, trainer.loss_steps = state["skipped_steps"], state["loss_steps"]
        trainer.loss_sum.fill_(state["loss_sum"])
        if rank == 0 and "counts" in state:  # summed over ranks, so added once; older checkpoints have none
            trainer.counts.copy_(state["counts"])
        self.elapsed_before_s, self.rows = state["elapsed_s"], list(state["accuracy"])
        same = state["world_size"] == trainer.mode.topology.world_size
        if same:
            load_buffers(trainer.mode.unwrap(trainer.model), state["ranks"][rank]["buffers"])
        if trainer.averages:
            trainer.notes += trainer.averages.load(state, same and state["ranks"][rank].get("averages"))
        if same or rank == 0:
            self.rng = state["ranks"][rank]["rng"]
        if rank == 0:
            trainer.skipped_images.update(name for part in state["ranks"] for name in part["skipped_images"])

    def check_resumable(self, state: dict, path: Path) -> None:
        examples, optimizer, done = state["num_images"], state["config"]["optimizer"], len(state["accuracy"])
        if examples != self.num_images:
            raise UserError(f"RESUME: {path} was trained on {examples} {self.examples_are}; DATA={self.config.data} "
                            f"has {self.num_images}: use the same data, or PRETRAINED={path}")  # fmt: skip
        if optimizer != self.config.optimizer:
            raise UserError(f"RESUME: {path} was trained with OPTIMIZER={optimizer}, whose state does not match "
                            f"{self.config.optimizer}: use the same, or PRETRAINED={path}")  # fmt: skip
        if done >= self.config.epochs and path.parent == self.trainer.run_dir:
            raise UserError(f"MIN_DEVICES: a rank was lost after the last epoch: {path} is complete, but there is no "
                            f"record: validate it with EVALUATE=1 RESUME={path}")  # fmt: skip
        if done >= self.config.epochs:
            raise UserError(f"RESUME: {path} has completed {done} epochs, which EPOCHS={self.config.epochs} includes: "
                            f"use EPOCHS={done + 1} or more")  # fmt: skip


def differences(state: dict, config: RunConfig, world_size: int) -> Iterator[str]:
    before, now, examples = state["config"], to_dict(without_names(config)), workload_of(config).batched
    epoch, rest = divmod(state["images_seen"], state["num_images"])
    yield f"resumed after step {state['step']}, {rest} {examples} into epoch {epoch + 1}"
    if state["world_size"] != world_size:
        yield (f"resumed with {world_size} processes instead of {state['world_size']}: every rank starts from rank "
               "0's batch-norm statistics, and all except rank 0 from new random numbers")  # fmt: skip
    batches = [unchecked(before).global_batch, config.global_batch]
    if batches[0] != batches[1]:
        yield (f"the global batch is {batches[1]} instead of {batches[0]}: the order of the {examples} is cut into "
               "other steps; LR is scaled only with LR_BASE_BATCH")  # fmt: skip
    if before.get("seed") != now["seed"]:
        yield f"SEED has changed: from here on the {examples} come in another order"
    if config.compression == "powersgd":
        yield "COMPRESSION=powersgd restarts: its accumulated error is lost"
    changed = [f"{name} {before[name]} → {now[name]}" for name in now
               if name in before and name not in MAY_CHANGE and before[name] != now[name]]  # fmt: skip
    if changed:
        yield f"changed options: {', '.join(changed)}"


def load_optimizer(trainer: Trainer, state: dict, path: Path) -> None:
    """The optimizer's state from a checkpoint; its settings (learning rate, decay) stay those of this run."""
    optimizer = trainer.optimizer
    settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    try:  # FUSED determines the device of an optimizer's step counter
        groups = [theirs | {"fused": own.get("fused")} for theirs, own in
                  zip(state["param_groups"], settings, strict=True)]  # fmt: skip
        trainer.mode.load_full_optimizer_state(trainer.model, optimizer, state | {"param_groups": groups})
    except (ValueError, KeyError) as error:
        wrong = f"RESUME: the optimizer's state in {path} does not match ({error}): use the same FREEZE"
        raise UserError(wrong) from None
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)


def get_rng(devices: list[torch.device]) -> dict[str, torch.Tensor]:
    """The state of this process's random numbers (dropout), of the CPU and of its GPUs by their position."""
    gpus = [device for device in devices if device.type == "cuda"]
    return {"cpu": torch.get_rng_state()} | {f"cuda{i}": torch.cuda.get_rng_state(d) for i, d in enumerate(gpus)}


def put_rng(state: dict[str, torch.Tensor], devices: list[torch.device]) -> None:
    torch.set_rng_state(state["cpu"])
    for i, device in enumerate(devices):
        if f"cuda{i}" in state and device.type == "cuda":
            torch.cuda.set_rng_state(state[f"cuda{i}"], device)
