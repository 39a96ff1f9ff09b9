"""The loss when replicas start from different weights, paired over seeds; the control is dp, with one set."""

import dataclasses
from collections.abc import Iterator

from bench.analysis.certificate import Rules, options, program
from bench.analysis.equivalence import margin_words
from bench.config.modes import MODES
from bench.config.options import RunConfig
from bench.config.rules import GPT
from bench.config.workloads import workload_of
from bench.errors import UserError
from bench.record.view import Record
from bench.studies.accuracy.study import OF_THE_SEED
from bench.studies.base import Flags, Plan, Study
from bench.studies.programs import available, even_threads, in_mode, prepare_training, refuse

MAIN = "rank 0"  # the model that a checkpoint holds
SETS = ("init_sync", "broadcast_buffers", "mistake", "watch", "sync")
RULES = Rules(
    {
        "initial weights": ("it is what is studied: every rank its own, or rank 0's", options("init_sync")),
        "buffers": ("which rank's buffers are used is also studied", program),
    },
    by_round=OF_THE_SEED,
    ranks_apart=("initial weights",),
)


def plans(console, asked: RunConfig, flags: Flags) -> Iterator[Plan]:
    """One suite. Raises UserError for one replica, a training without epochs, data without a validation set."""
    refuse(asked, *SETS)
    if asked.num_devices < 2:
        raise UserError("GPUS=1 has only one replica: use GPUS=2 or more")
    if not asked.replicas:
        raise UserError("REPLICAS=0 would not record the replicas: leave it out")
    config = prepare_training(console, asked)
    found = programs(config, available(console, config))
    against = f"each model against {MAIN} of the synchronised run, paired by seed"
    console.print(f"margin, fixed in advance: {margin_words(workload_of(config).metrics[0])}, {against}")
    yield Plan(UNSYNCED, found, says=every_rank)


def programs(config: RunConfig, modes: list[str]) -> dict[str, RunConfig]:
    """Every mode that can start unsynchronised, with and without that, and without rank 0's buffers; the control."""
    config, found = even_threads(config), {}
    for mode in (mode for mode in modes if "init_sync" in MODES[mode].knobs):
        found[mode] = in_mode(config, mode)
        apart = dataclasses.replace(found[mode], init_sync=False)
        found[f"{mode} unsynced"] = apart
        if "broadcast_buffers" in MODES[mode].knobs and config.model != GPT:  # it has no buffers
            found[f"{mode} unsynced own buffers"] = dataclasses.replace(apart, broadcast_buffers=False)
    controls = [mode for mode in modes if MODES[mode].one_process and MODES[mode].max_devices != 1]
    return found | {mode: in_mode(config, mode) for mode in controls}


def replicas_of(record: Record) -> dict:
    """The replicas of a record. Raises UserError if it was made without REPLICAS=1."""
    if not record.samples[0].replicas:
        raise UserError(f"{record.run_id} contains no data about its replicas: it ran without REPLICAS=1")
    return record.samples[0].replicas


def ranks_of(record: Record) -> list[list[float]]:
    return replicas_of(record)[f"ranks_{record.workload.metrics[0].key}"]


def every_rank(record: Record) -> str:
    metric = record.workload.metrics[0]
    values = [metric.displayed(value) for value in ranks_of(record)[-1]]
    digits, unit = (1, "%") if metric.percent else (3, metric.label)
    return f"{' / '.join(f'{value:.{digits}f}' for value in values)} {unit}"


UNSYNCED = Study(
    "unsynced", "mistake unsynced-init", "Replicas initialised with different weights",
    "What is lost when ranks start from different weights?",
    "what is lost when replicas start from different weights, paired by seed", plans,
    group="explain", example="GPUS=2 [SEEDS=10 QUICK=1]",
    # A network of 1.3 million weights, so that sixty short trainings take a quarter of an hour on two CPU cores.
    # Without decay the replicas keep their initial distance.
    defaults={"num_devices": 2, "model": "shufflenet_v2_x1_0", "data": "digits", "image_size": 32, "epochs": 3,
              "lr": 0.02, "lr_warmup_steps": "0.25e", "schedule": "cosine", "augment": True, "replicas": True},
    others={"text": {"epochs": 1, "lr": 0.2, "lr_warmup_steps": "0.1e", "clip_norm": 1.0}},
    sets=("warmup_steps", "timed_steps"), rounds=10, seeded=True,
)  # fmt: skip
STUDIES = (UNSYNCED,)
