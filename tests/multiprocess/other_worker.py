"""Launch ranks that do something else than bench.worker, and nothing else otherwise than `bench run` does."""

from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from bench.config.options import RunConfig
from bench.launch import launcher as run


def launch(config: RunConfig, module: str) -> Path:
    """``bench.launch.launcher.launch`` with ``module`` in the worker's place. It must leave RUN_DIR/record.json, too."""
    config = run.resolve_here(config)
    engine = run.ENGINES[config.launcher]

    def command(*arguments):
        argv, variables = engine.command(*arguments)
        return [module if word == "bench.worker" else word for word in argv], variables

    with mock.patch.dict(run.ENGINES, {config.launcher: SimpleNamespace(command=command)}):
        return run.launch(config)
