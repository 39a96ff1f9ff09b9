"""Launch ranks that do something else than bench.worker, and nothing else otherwise than `bench run` does."""

from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from bench.config.options import RunConfig
from bench.launch import launcher
from bench.launch.engines import ENGINES


def launch(config: RunConfig, module: str) -> Path:
    """``launcher.launch`` with ``module`` in the worker's place. It must leave RUN_DIR/record.json, too."""
    config = launcher.resolve_here(config)
    engine = ENGINES[config.launcher]

    def command(*arguments):
        argv, variables = engine.command(*arguments)
        return [module if word == "bench.worker" else word for word in argv], variables

    with mock.patch.dict(ENGINES, {config.launcher: SimpleNamespace(command=command)}):
        return launcher.launch(config)
