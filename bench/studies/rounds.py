"""Run the programs of a suite in interleaved rounds: A B C, then in another order, and so on; one record each."""

import dataclasses
import secrets
import time
from pathlib import Path

from bench.config.options import RunConfig
from bench.errors import RunFailed
from bench.launch.launcher import launch
from bench.launch.progress_bar import LiveProgress
from bench.record.write import load
from bench.studies import programs as suites


def new_suite(kind: str) -> str:
    """A name that no other suite has."""
    return f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def images_per_s(record: dict) -> str:
    """What is said of a run while its suite goes on."""
    return f"{record['summary']['throughput_images_per_s']:.1f} images/s"


def as_it_is(config: RunConfig, number: int) -> RunConfig:
    """A config in round ``number``: the same in every round."""
    return config


def run_rounds(
    console, suite: str, roles: dict[str, RunConfig], rounds: int, out: str, after_round=None, in_round=as_it_is,
    say=images_per_s, may_fail=(),
) -> Path:  # fmt: skip
    """Run every role once a round, in a rotated order, into OUT/<suite>/; returns that folder.

    in_round: a role's config and the number of a round, from 0 -> its config there. say: a record in a few words.
    after_round: called with the records of the first round, to stop early by an exception. may_fail: roles whose failed
    record is their result. Raises UserError when a role cannot run here, RunFailed when another does not end well: the
    records so far stay.
    """
    folder, started = Path(out) / suite, time.monotonic()
    for number in range(rounds):
        said, records = {}, []
        for role in suites.order(list(roles), number):
            config, title = in_round(roles[role], number), f"round {number + 1}/{rounds} {role}"
            try:
                record = run_one(console, suite, role, config, number, folder, title)
            except RunFailed as error:
                if role not in may_fail or error.exit_code != RunFailed.exit_code:  # Ctrl-C has another
                    raise
                said[role] = "failed, as it may"
                continue
            said[role] = say(record)
            records.append(record)
        row = ", ".join(f"{role} {said[role]}" for role in roles)
        console.print(f"round {number + 1} of {rounds} ({time.monotonic() - started:.0f} s): {row}")
        if number == 0 and after_round:
            after_round(records)
    return folder


def run_one(console, suite: str, role: str, config: RunConfig, number: int, folder: Path, title: str) -> dict:
    """One run of a suite; its record."""
    labels = {"suite": suite, "role": role, "round": number, "out": str(folder), "baselines": False}
    config = dataclasses.replace(config, **labels)
    try:
        with LiveProgress(config, console, title) as watch:
            return load(launch(config, watch))
    except RunFailed as error:
        failed = RunFailed(f"{role}, round {number + 1}: {error}. The records so far are in {folder}")
        failed.exit_code = error.exit_code
        raise failed from None
