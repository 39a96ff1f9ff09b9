"""TRACK: a run's curves for TensorBoard, or for Weights & Biases, which reads TensorBoard's files. Only rank 0 tracks.

- a step never waits for a disk or a network: ``log`` puts the values into a queue, and a thread writes them;
- a tracker never ends a run: an error after it was opened is one line in the rank's log, and later values are dropped;
- nothing is sent anywhere and everything is under the run's folder, unless WANDB_MODE=online is in the environment.
  An offline run is sent later by ``wandb sync RUN_DIR/wandb/offline-run-*``.

A process that leaves by os._exit without ``close`` loses the last second of values.
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

from bench.errors import UserError
from bench.process import tree

CLOSE_S = 30.0  # for what is still in the queue, and for wandb's service to end
END_S = 3.0  # from killing that service to its being gone
FLUSH_S = 1  # a killed run loses at most about so much

# What wandb is told, where the user's environment says nothing else. By variables, for a wandb that does not know one
# ignores it; a doubled underscore is one of its private settings.
WANDB_ENVIRONMENT = {
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",  # wandb 0.31 calls its makers' server with it, even from offline runs
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",  # the rank's output is the rank log's
    "WANDB_DISABLE_GIT": "true",  # what a run ran on is in the record
    "WANDB_DISABLE_CODE": "true",
    "WANDB__DISABLE_META": "true",
    "WANDB__DISABLE_MACHINE_INFO": "true",
    "WANDB__DISABLE_STATS": "true",  # a process that samples the machine would be in the measurement
    "WANDB__TRANSACTION_LOG_FLUSH_INTERVAL": str(FLUSH_S),  # 15 s by default, and a killed run loses what is unwritten
    "WANDB_INIT_TIMEOUT": "30",
}


class NoTracker:
    """Tracks nothing, and is the interface."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Note numbers by name at a step; steps must not go back. No tensors: to read one waits for its device."""

    def close(self) -> None:
        """Write what is left, within a time limit. A second call does nothing."""


class TensorBoard(NoTracker):
    host = "run"  # in the files' names, where TensorBoard puts this machine's

    def __init__(self, run_dir: Path, config: dict):
        require("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        # A queue without a limit (0): with one, a step would wait for a slow disk.
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
            warn(f"{type(error).__name__}: {error}; no more values are written")

    def finish(self) -> None:
        self.writer.close()


class Wandb(TensorBoard):
    """The same event files, which wandb's service process reads into RUN_DIR/wandb. It ends by ``finish``, else by
    ``close``, else by itself within a second of this process's end."""

    host = socket.gethostname()  # wandb reads no other machine's files

    def __init__(self, run_dir: Path, config: dict):
        require("tensorboard", "wandb")  # before anything is started
        folder = run_dir.absolute() / "wandb"
        for name, value in (WANDB_ENVIRONMENT | {"WANDB_CACHE_DIR": str(folder / "cache")}).items():
            os.environ.setdefault(name, value)
        os.environ.pop("WANDB_SERVICE", None)  # another program's service would not end with this run
        self.scratch = folder / "scratch"
        self.scratch.mkdir(parents=True, exist_ok=True)
        # While it is imported, wandb makes temporary folders that only an ordinary end of Python would remove.
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
            raise UserError(f"TRACK=wandb with WANDB_MODE={asked} does not start ({why}): {hint}") from error
        self.services = [p for p in tree.with_descendants(os.getpid()) if p not in others]
        super().__init__(run_dir, config)

    def finish(self) -> None:
        super().finish()
        self.run.finish()  # waits some seconds for more event files
        self.wandb.teardown()

    def close(self) -> None:
        super().close()
        tree.terminate(self.services, END_S)
        shutil.rmtree(self.scratch, ignore_errors=True)


KINDS = {"none": NoTracker, "tensorboard": TensorBoard, "wandb": Wandb}


def open_tracker(kind: str, run_dir: Path, config: dict, rank: int) -> NoTracker:
    """kind: TRACK. config: the run's options by name. Raises UserError on a missing package, or a wandb that does not
    start."""
    if kind == "none" or rank != 0:
        return NoTracker()
    return KINDS[kind](Path(run_dir), config)


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
    raise UserError(f"TRACK={kind} needs {package}{why}: pip install 'data-parallel-bench[track]'")


def warn(text: str) -> None:
    print(f"tracker: {text}", file=sys.stderr, flush=True)
