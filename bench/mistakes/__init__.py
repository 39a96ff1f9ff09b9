"""The known mistakes of data-parallel training: text, injection, detector, measures. Nothing here imports torch.

To add one: its file, with a detector of the file's name under ``@mistake``, and that name in ``FILES``.
"""

import importlib

from bench.mistakes.base import Finding, Mistake
from bench.mistakes.measures import part_of

FILES = (
    "unsynced_init", "whole_data", "no_reshuffle", "rank_metrics", "many_writers", "rank0_collective", "lr_not_scaled",
    "same_augmentation", "gradient_sum", "strict_false", "local_norm", "host_sync", "lost_remainder",
    "loader_starvation", "same_random", "uneven_steps", "drift", "no_exchange", "no_group", "forgotten_parameters",
    "stale_optimizer", "lr_by_rank", "unsynced_accumulation", "rank0_forward", "counted_twice", "other_replica",
    "hidden_step", "no_zero_grad", "unsynced_buffers", "schedule_length", "uneven_targets", "memory_growth",
    "load_by_rank", "loader_stuck", "extra_context", "weights_not_loaded", "no_eval",
)  # fmt: skip

DETECTED: dict[str, Mistake] = {
    mistake.name: mistake
    for mistake in (getattr(importlib.import_module(f"bench.mistakes.{file}"), file).mistake for file in FILES)
}
MISTAKES = {name: mistake for name, mistake in DETECTED.items() if mistake.lab}  # those that can be made on purpose
INJECTED = tuple(name for name, mistake in MISTAKES.items() if not mistake.switch)  # by INJECT=<name>


def find(observed: dict) -> list[Finding]:
    """All findings of a run (observed: bench/record/observed.py), except those that follow from another one."""
    found = [finding for mistake in DETECTED.values() if (finding := mistake.find(observed))]
    explained = explained_by(found)
    return [finding for finding in found if finding.name not in explained]


def explained_by(found: list[Finding]) -> set[str]:
    return {name for finding in found if not finding.question for name in DETECTED[finding.name].explains}


def unobserved(observed: dict) -> list[str]:
    """The mistakes that cannot be checked in a record of this project, because their input was not observed."""
    return [name for name, mistake in DETECTED.items() if not (mistake.watched or mistake.observed(observed))]


def unobserved_reasons(observed: dict, reasons: dict[str, str]) -> dict[str, str]:
    """The same for a Watch: each mistake with its reason, or "" if unknown. reasons: by key of ``observed``."""
    unseen = [mistake for mistake in DETECTED.values() if not mistake.observed(observed)]
    needed = {mistake.name: mistake.needs.split("|")[0].split() for mistake in unseen}
    return {name: reasons.get(needs[0]) or reason_in(observed, needs) for name, needs in needed.items()}


def reason_in(observed: dict, needs: list[str]) -> str:
    """The reason in an observed part's "unheard" for its missing keys."""
    return part_of(observed, [*needs[:-1], "unheard", *needs[-1:]]) or ""
