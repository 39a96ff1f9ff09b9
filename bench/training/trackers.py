"""TRACK: a run's curves for TensorBoard, or for Weights & Biases, which reads TensorBoard's files. Only rank 0 tracks.

- a step never waits for a disk or a network: ``log`` puts the values into a queue, and a thread writes them;
- a tracker never ends a run: an error after it was opened is a note of the run, and later values are dropped;
- nothing is sent anywhere and everything is under the run's folder, unless WANDB_MODE=online is in the environment.
  An offline run is sent later by ``wandb sync RUN_DIR/wandb/offline-run-*``.

A process that exits by os._exit without ``close`` loses the last second of values.
"""

import importlib
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from bench import formulas
from bench.config.options import RunConfig
from bench.config.sections import TRACKERS
from bench.config.workloads import workload_of
from bench.errors import UserError
from bench.process import tree
from bench.process.heartbeat import Window
from bench.record.describe import best_source
from bench.training.hooks import Hook

CLOSE_S = 30.0  # for the remaining queue, and for wandb's service to end
END_S = 3.0  # from killing that service to its end
FLUSH_S = 1  # a killed run loses at most about this much

# wandb's settings, unless the user's environment sets them. As variables, because wandb ignores unknown ones; a double
# underscore marks a private setting.
WANDB_ENVIRONMENT = {
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",  # otherwise wandb 0.31 contacts its server, even in offline runs
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",  # the rank's output goes to the rank's log
    "WANDB_DISABLE_GIT": "true",  # the record has the code version
    "WANDB_DISABLE_CODE": "true",
    "WANDB__DISABLE_META": "true",
    "WANDB__DISABLE_MACHINE_INFO": "true",
    "WANDB__DISABLE_STATS": "true",  # a process that samples the machine would disturb the measurement
    "WANDB__TRANSACTION_LOG_FLUSH_INTERVAL": str(FLUSH_S),  # 15 s by default; a killed run loses unwritten values
    "WANDB_INIT_TIMEOUT": "30",
}


Note = Callable[[str], object]


class NoTracker:
    """The interface; tracks nothing."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Log numbers by name at a step; steps must not decrease. No tensors: reading one waits for its device."""

    def close(self) -> None:
        """Write the remaining values, within a time limit. A second call does nothing."""


class TensorBoard(NoTracker):
    host = "run"  # in the files' names, instead of this machine's name

    def __init__(self, run_dir: Path, config: dict, note: Note):
        require("tensorboard", "tensorboard")
        self.note = note
        from torch.utils.tensorboard import SummaryWriter

        # An unlimited queue (0): with a limit, a step would wait for a slow disk.
        with mock.patch("socket.gethostname", return_value=self.host):
            self.writer = SummaryWriter(run_dir / "tensorboard", max_queue=0, flush_secs=FLUSH_S)
        self.writer.add_text("config", f"```\n{json.dumps(config, indent=2, default=str)}\n```")
        self.open = True

    def log(self, step: int, values: dict[str, float]) -> None:
        if self.open:
            self.attempt(lambda: [self.writer.add_scalar(name, value, step) for name, value in values.items()])

    def close(self) -> None:
        if not self.open:
            return
        thread = threading.Thread(target=self.attempt, args=(self.finish,), daemon=True)
        thread.start()
        thread.join(CLOSE_S)
        if thread.is_alive():
            warn(f"not closed after {CLOSE_S:g} s: its last values may be missing")
        self.open = False

    def attempt(self, write: Callable[[], object]) -> None:
        try:
            write()
        except Exception as error:
            self.open = False
            text = f"{type(error).__name__}: {error}; no more values are written"
            warn(text)
            self.note(f"tracker: {text}")

    def finish(self) -> None:
        self.writer.close()


class Wandb(TensorBoard):
    """The same event files, which wandb's service process reads into RUN_DIR/wandb. It ends by ``finish``, else by
    ``close``, else by itself within a second of this process's end."""

    host = socket.gethostname()  # wandb reads no other machine's files

    def __init__(self, run_dir: Path, config: dict, note: Note):
        require("tensorboard", "wandb")  # before anything is started
        folder = run_dir.absolute() / "wandb"
        for name, value in (WANDB_ENVIRONMENT | {"WANDB_CACHE_DIR": str(folder / "cache")}).items():
            os.environ.setdefault(name, value)
        os.environ.pop("WANDB_SERVICE", None)  # another program's service would not end with this run
        self.scratch = folder / "scratch"
        self.scratch.mkdir(parents=True, exist_ok=True)
        # During its import, wandb creates temporary folders that only a normal exit of Python would remove.
        before, tempfile.tempdir = tempfile.tempdir, str(self.scratch)
        try:
            self.wandb = require("wandb", "wandb")
        finally:
            tempfile.tempdir = before
        others = tree.with_descendants(os.getpid())
        try:
            named = {"dir": run_dir.absolute(), "project": "data-parallel-bench", "name": run_dir.name}
            self.run = self.wandb.init(**named, config=config, sync_tensorboard=True)
        except Exception as error:
            tree.terminate([p for p in tree.with_descendants(os.getpid()) if p not in others], END_S)
            asked, why = os.environ["WANDB_MODE"], str(error).partition("\n")[0]
            hint = "leave TRACK out" if asked == "offline" else "leave WANDB_MODE out to track offline"
            raise UserError(f"TRACK=wandb with WANDB_MODE={asked} did not start ({why}): {hint}") from error
        self.services = [p for p in tree.with_descendants(os.getpid()) if p not in others]
        super().__init__(run_dir, config, note)

    def finish(self) -> None:
        super().finish()
        self.run.finish()  # waits some seconds for more event files
        self.wandb.teardown()

    def close(self) -> None:
        super().close()
        tree.terminate(self.services, END_S)
        shutil.rmtree(self.scratch, ignore_errors=True)


KINDS = {"none": NoTracker, "tensorboard": TensorBoard, "wandb": Wandb}


def open_tracker(kind: str, run_dir: Path, config: dict, rank: int, note: Note = lambda text: None) -> NoTracker:
    """kind: TRACK. config: the run's options by name. note: gets an error that ends the tracking. Raises UserError on a
    missing package, or a wandb that does not start."""
    if kind == "none" or rank != 0:
        return NoTracker()
    return KINDS[kind](Path(run_dir), config, note)


class Curves(Hook):
    """What a tracker gets of a training, by name. Nothing here waits for a device. flops: of an example, None if they
    are not counted. peak_tflops: of a device, None if it is unknown."""

    def __init__(self, tracker: NoTracker, config: RunConfig, flops: float | None, peak_tflops: float | None):
        self.tracker, self.config, self.workload = tracker, config, workload_of(config)
        self.flops, self.peak_tflops = flops, peak_tflops

    def on_loss(self, step: int, loss: float) -> None:
        self.tracker.log(step, {"train/loss": loss})

    def on_window(self, step: int, window: Window) -> None:
        units, per_example = self.workload.units, self.workload.per_example
        step_ms = 1e3 * self.config.global_batch * per_example / window.rate
        self.tracker.log(step, {
            "train/lr": window.lr,
            "perf/examples_per_s": window.rate / per_example,
            **self.utilization(window.rate / per_example),
            **({f"perf/{units}_per_s": window.rate} if per_example > 1 else {}),
            "perf/step_ms": step_ms,
            "perf/data_wait_ms": window.data_wait * step_ms,
            "memory/device0_gib": window.memory_gib,
        })  # fmt: skip

    def utilization(self, examples_per_s: float) -> dict[str, float]:
        if not self.flops:
            return {}
        devices = 1 if self.config.share_gpu else self.config.num_devices
        tflops = formulas.model_flops_per_s(examples_per_s, self.flops, devices) / 1e12
        mfu = formulas.model_flops_utilization(tflops, self.peak_tflops) if self.peak_tflops else None
        return {"perf/tflops_per_device": tflops} | ({"perf/mfu": mfu} if mfu else {})

    def epoch_ended(self, step: int, row: dict, memory_gib: list[float]) -> None:
        """row: as in the record. memory_gib: of every device."""
        values = {name_of(key): float(value) for key, value in row.items() if value is not None}
        values |= {f"memory/device{i}_gib": gib for i, gib in enumerate(memory_gib)}
        self.tracker.log(step, {name: value for name, value in values.items() if name})

    def run_ended(self, step: int, summary: dict) -> None:
        """summary: of the record. Its numbers, and the medians, keep their names."""
        peaks = summary["peak_memory_gib"]
        medians = {key: found.get("median") if isinstance(found, dict) else found for key, found in summary.items()}
        values = {f"summary/{key}": value for key, value in medians.items() if isinstance(value, int | float)}
        if source := best_source(peaks):
            values |= {f"memory/device{i}_peak_gib": peak[source] for i, peak in enumerate(peaks)}
        self.tracker.log(step, values)


PLACES = {
    "epoch": "train/epoch",
    "images_seen": "train/examples_seen",
    "lr": "train/lr",
    "skipped_steps": "train/skipped_steps",
    "elapsed_s": "perf/elapsed_s",
    "validate_s": "perf/validate_s",
    "steps": "",  # the x axis
    "images": "",  # of the validation set
}


def name_of(key: str) -> str:
    """A tracker's name for a value of an epoch's row; "" for one that it does not get.

    >>> [name_of(key) for key in ("lr", "train_top1", "top1", "ema_loss", "steps")]
    ['train/lr', 'train/top1_epoch', 'val/top1', 'val/ema_loss', '']
    """
    trained = key.removeprefix("train_")
    return PLACES.get(key, f"val/{key}" if trained == key else f"train/{trained}_epoch")


def require(package: str, kind: str):
    """Import an optional package. Raises UserError when it is missing, or does not load. The real one has a version: a
    folder called ``wandb`` in the working directory, which wandb itself leaves behind, imports as an empty package."""
    why = ""
    try:
        module = importlib.import_module(package)
        if hasattr(module, "__version__"):
            return module
    except ImportError as error:
        why = "" if error.name == package else f" ({str(error).partition(chr(10))[0]})"
    raise UserError(f"TRACK={kind} needs {package}{why}: pip install {' '.join(TRACKERS[kind])}")


def warn(text: str) -> None:
    print(f"tracker: {text}", file=sys.stderr, flush=True)
