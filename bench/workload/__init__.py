"""Workloads: one folder each with one interface (base.py), and their shared parts."""

import importlib

from bench.config.options import RunConfig
from bench.config.own import KERAS
from bench.config.workloads import workload_of


def load_workload(config: RunConfig, device):
    from bench.workload import own_code  # it needs torch

    if (config.model or "").startswith(KERAS):
        from bench.workload.models.keras_models import keras_on_torch

        keras_on_torch(config)  # before the user's file imports Keras, which then fixes its backend
    found = importlib.import_module(f"bench.workload.{workload_of(config).name}").Workload(config, device)
    own_code.attach(found)
    return found
