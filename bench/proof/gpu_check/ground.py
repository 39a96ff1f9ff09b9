"""The options, runs and commands of a check, and what it may need of a machine. A run with the same options as in an
earlier check is not repeated. No torch is imported."""

import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from bench.config.options import RunConfig, to_dict
from bench.errors import BenchError, RunFailed
from bench.files import PROJECT
from bench.install import horovod_status
from bench.launch.devices import SHORT_FROM
from bench.launch.launcher import launch, resolve_here
from bench.measure import nccl
from bench.measure.nccl import SHARING
from bench.measure.nvml import Gpu
from bench.process import tree
from bench.record.read import load
from bench.record.view import Record

QUICK = {"warmup_steps": 10, "timed_steps": 30}
NO_PROGRESS_S = 120.0
NO_PROGRESS_COMPILING_S = 300.0
CHOSEN = ("model", "image_size", "seed", "threads", "data_dir", "out")  # by the user; checks set the rest

# The words after "needs" -> whether a machine with these GPUs has it.
NEEDS = {
    "2 GPUs": lambda gpus: len(gpus) >= 2,
    "bf16 and TF32 (compute capability 8.0)": lambda gpus: all(
        not gpu.compute_capability or float(gpu.compute_capability) >= float(SHORT_FROM) for gpu in gpus
    ),
    "Horovod with NCCL (part A1 builds it)": lambda gpus: horovod_status.nccl_built(),
    "NCCL 2.30 for ranks that share a GPU": lambda gpus: bool(nccl.shared_variables()),
    "a C++ compiler": lambda gpus: any(map(shutil.which, ("g++", "clang++", "c++"))),
    "Triton and a C compiler": lambda gpus: bool(
        importlib.util.find_spec("triton") and any(map(shutil.which, ("cc", "gcc", "clang")))
    ),
}
TWO_GPUS, SHORT, HOROVOD, SHARED_NCCL, CXX, COMPILES = NEEDS


def unmet_need(needs: tuple[str, ...], gpus: list[Gpu]) -> str:
    return next((need for need in needs if not NEEDS[need](gpus)), "")


class Ground:
    """asked: the options; only CHOSEN differ from the defaults. runs: hash of options -> folder in OUT. device: "cpu"
    in tests of a check."""

    def __init__(self, asked: RunConfig, num_gpus: int = 1, runs: dict[str, str] | None = None, device: str = "cuda"):
        self.asked, self.num_gpus, self.runs, self.device = asked, num_gpus, dict(runs or {}), device

    @property
    def out(self) -> Path:
        return Path(self.asked.out)

    def config(self, mode: str = "single", devices: int = 1, label: dict | None = None, **options) -> RunConfig:
        """The resolved config of a short run, by default with TORCH_DEFAULTS=1. Raises UserError."""
        common = {"device": self.device, "baselines": False, "plain": True, "timeout": NO_PROGRESS_S} | QUICK
        common |= {"timeout": NO_PROGRESS_COMPILING_S} if options.get("compile") else {}
        options = common | options | {"mode": mode, "num_devices": devices}
        return resolve_here(dataclasses.replace(self.asked, **options).labelled(**label or {}))

    def run(self, mode: str = "single", devices: int = 1, **options) -> Record:
        config = self.config(mode, devices, **options)
        options = {name: value for name, value in to_dict(config).items() if name != "out"}
        shared = os.environ.get(SHARING) if config.share_gpu else None
        key = hashlib.sha256(json.dumps([shared, options], sort_keys=True).encode()).hexdigest()[:16]
        if key in self.runs:
            with contextlib.suppress(BenchError):  # the folder may be gone
                return load(self.out / self.runs[key] / "record.json")
        path = launch(config)
        self.runs[key] = path.parent.relative_to(self.out).as_posix()
        return load(path)

    def failing(self, **options) -> dict:
        """The failure of a run with a fault: rank, kind, message. Its record is not kept."""
        with tempfile.TemporaryDirectory(prefix="bench-gpu-check-") as folder:
            try:
                launch(dataclasses.replace(self.config(**options), out=folder))
            except RunFailed as error:
                return error.failure
        return {"rank": None, "kind": "none", "message": "it ended well"}

    def command(self, words: list[str], limit_s: float, variables: dict | None = None) -> tuple[int | None, str]:
        lines = []
        code = tree.run([sys.executable, *words], limit_s, lines.append, alone_s=tree.GRACE_S, cwd=PROJECT,
                        env={**os.environ, **(variables or {})})  # fmt: skip
        said = "".join(lines)
        print(said, flush=True)  # into the check's log
        return code, said
