"""Do all modes learn the same? Every mode trained to the end, once per seed."""

from collections.abc import Iterator

from bench.analysis.certificate import Rules
from bench.analysis.equivalence import margin_words
from bench.config.options import RunConfig
from bench.config.workloads import workload_of
from bench.studies.base import Flags, Plan, Study
from bench.studies.programs import (
    MODES_FLAG,
    available,
    even_threads,
    in_mode,
    last_accuracy,
    modes_of,
    prepare_training,
)

OF_THE_SEED = ("seed", "images of the first steps", "initial weights")  # facts that differ in every round
RULES = Rules(by_round=OF_THE_SEED)


def plans(console, asked: RunConfig, flags: Flags) -> Iterator[Plan]:
    config = prepare_training(console, asked)
    found = programs(config, available(console, config, modes_of(flags.modes)))
    margin = margin_words(workload_of(config).metrics[0])
    console.print(f"margin, fixed in advance: {margin}, against {next(iter(found))}, paired by seed")
    yield Plan(ACCURACY, found, says=last_accuracy)


def programs(config: RunConfig, modes: list[str]) -> dict[str, RunConfig]:
    return {mode: in_mode(even_threads(config), mode) for mode in modes}


ACCURACY = Study(
    "accuracy", "compare accuracy", "Accuracy", "Do all modes reach the same accuracy?",
    "every mode trained to the end, paired by seed: do all reach the same accuracy?", plans,
    example="GPUS=2 [SEEDS=5 QUICK=1]",
    # The digits at their own size, half a minute to a minute per run on two CPU cores.
    defaults={"model": "resnet18", "data": "digits", "image_size": 8, "epochs": 12, "lr": 0.05,
              "lr_warmup_steps": "1e", "schedule": "cosine", "weight_decay": 5e-4, "augment": True, "target": 0.98},
    # Two million bytes of Python once, half a minute per run on two CPU cores.
    others={"text": {"epochs": 1, "lr": 0.003, "optimizer": "adamw", "weight_decay": 0.1, "lr_warmup_steps": "0.1e"}},
    flags=MODES_FLAG, sets=("warmup_steps", "timed_steps"), seeded=True, partial="memory",
)  # fmt: skip
STUDIES = (ACCURACY,)
