"""Run the programs of a suite in interleaved rounds: A B C, then in another order, and so on; one record each."""

import dataclasses
import secrets
import time
from pathlib import Path

from bench import suites
from bench.config import RunConfig
from bench.errors import RunFailed
from bench.launch.run import launch
from bench.live import LiveProgress
from bench.record import load


def new_suite(kind: str) -> str:
    """A name that no other suite has."""
    return f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def run_rounds(console, suite: str, roles: dict[str, RunConfig], rounds: int, out: str, after_round=None) -> Path:
    """Run every role once a round, in a rotated order, into OUT/<suite>/; returns that folder.

    after_round: called with the records of the first round, to stop early by an exception. Raises UserError when a
    role cannot run here, RunFailed when one does not end well: the records so far stay.
    """
    folder, started = Path(out) / suite, time.monotonic()
    for number in range(rounds):
        said, records = {}, []
        for role in suites.order(list(roles), number):
            record = run_one(console, suite, role, roles[role], number, folder, f"round {number + 1}/{rounds} {role}")
            said[role] = record["summary"]["throughput_images_per_s"]
            records.append(record)
        row = ", ".join(f"{role} {said[role]:.1f}" for role in roles)
        console.print(f"round {number + 1} of {rounds} ({time.monotonic() - started:.0f} s): {row} images/s")
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
