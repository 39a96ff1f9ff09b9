"""What is trained: one folder per workload with one interface (base.py), and what all workloads share."""

import importlib

from bench.config.options import RunConfig
from bench.config.own import KERAS
from bench.config.workloads import workload_of


def load_workload(config: RunConfig, device):
    from bench.workload import own_code  # it needs torch

    if (config.model or "").startswith(KERAS):
        from bench.workload.models.keras_models import keras_on_torch

        keras_on_torch(config)  # before a file of the user's imports Keras, which then keeps its backend
    found = importlib.import_module(f"bench.workload.{workload_of(config).name}").Workload(config, device)
    own_code.attach(found)
    return found
