"""Launch ranks that do something else than bench.worker, and nothing else otherwise than `bench run` does."""

from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from bench.config.options import RunConfig
from bench.launch import launcher


def launch(config: RunConfig, module: str) -> Path:
    """``launcher.launch`` with ``module`` in the worker's place. It must leave RUN_DIR/record.json, too."""
    config = launcher.resolve_here(config)
    engine = launcher.ENGINES[config.launcher]

    def command(*arguments):
        argv, variables = engine.command(*arguments)
        return [module if word == "bench.worker" else word for word in argv], variables

    with mock.patch.dict(launcher.ENGINES, {config.launcher: SimpleNamespace(command=command)}):
        return launcher.launch(config)
