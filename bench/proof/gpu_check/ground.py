"""What a check stands on: the options that were asked for, and runs and commands with a limit.

A run with the options of an earlier check's is not made again: its record is asked.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

from bench.config.options import RunConfig, to_dict
from bench.errors import BenchError, RunFailed
from bench.files import PROJECT
from bench.launch.launcher import launch, resolve_here
from bench.measure.nccl import SHARING
from bench.process import tree
from bench.record.read import load
from bench.record.view import Record

QUICK = {"warmup_steps": 10, "timed_steps": 30}
NO_PROGRESS_S = 120.0  # after which a run has hung
NO_PROGRESS_COMPILING_S = 300.0
CHOSEN = ("model", "image_size", "seed", "threads", "data_dir", "out")  # what a person may; the checks set the rest


class Ground:
    """asked: the options, of which only CHOSEN are not at their defaults. runs: what was run, as a hash of its
    options -> its folder in OUT.
    device: "cpu" where a check itself is tried."""

    def __init__(self, asked: RunConfig, num_gpus: int = 1, runs: dict[str, str] | None = None, device: str = "cuda"):
        self.asked, self.num_gpus, self.runs, self.device = asked, num_gpus, dict(runs or {}), device

    @property
    def out(self) -> Path:
        """Where records go."""
        return Path(self.asked.out)

    def config(self, mode: str = "single", devices: int = 1, label: dict | None = None, **options) -> RunConfig:
        """A resolved config of a short run, with PLAIN=1 unless ``options`` say otherwise: a check names what it is
        about. Raises UserError where this machine cannot do it."""
        common = {"device": self.device, "baselines": False, "plain": True, "timeout": NO_PROGRESS_S} | QUICK
        common |= {"timeout": NO_PROGRESS_COMPILING_S} if options.get("compile") else {}
        options = common | options | {"mode": mode, "num_devices": devices}
        return resolve_here(dataclasses.replace(self.asked, **options).labelled(**label or {}))

    def run(self, mode: str = "single", devices: int = 1, **options) -> Record:
        """The record of a run with these options. Raises BenchError where it does not end well."""
        config = self.config(mode, devices, **options)
        options = {name: value for name, value in to_dict(config).items() if name != "out"}
        shared = os.environ.get(SHARING) if config.share_gpu else None
        key = hashlib.sha256(json.dumps([shared, options], sort_keys=True).encode()).hexdigest()[:16]
        if key in self.runs:
            with contextlib.suppress(BenchError):  # its folder may be gone
                return load(self.out / self.runs[key] / "record.json")
        path = launch(config)
        self.runs[key] = path.parent.relative_to(self.out).as_posix()
        return load(path)

    def failing(self, **options) -> dict:
        """The failure that a run which is broken on purpose leaves: rank, kind, message. Its record is not kept."""
        with tempfile.TemporaryDirectory(prefix="bench-gpu-check-") as folder:
            try:
                launch(dataclasses.replace(self.config(**options), out=folder))
            except RunFailed as error:
                return error.failure
        return {"rank": None, "kind": "none", "message": "it ended well"}

    def command(self, words: list[str], limit_s: float, variables: dict | None = None) -> tuple[int | None, str]:
        """``python *words`` -> its exit code, None where it was ended after ``limit_s`` seconds, and what it said."""
        lines = []
        code = tree.run([sys.executable, *words], limit_s, lines.append, alone_s=tree.GRACE_S, cwd=PROJECT,
                        env={**os.environ, **(variables or {})})  # fmt: skip
        said = "".join(lines)
        print(said, flush=True)  # into the check's log
        return code, said
