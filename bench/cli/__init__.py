"""The commands: one table, from which `bench`, the Makefile, their help and the manual's table are made.

To add one: its file in this folder, with ``COMMAND``, and its name here.
"""

import importlib

from bench.cli.base import COURSE, DEVELOP, Command

NAMES = (
    "run", "compare", "network", "time", "cluster",
    "profile", "sweep", "mistake", "predict",
    "verify", "doctor",
    "report", "diff", "status", "infer",
    "notebooks", "site", "course",
    "install", "help",
)  # fmt: skip
COMMANDS: dict[str, Command] = {name: importlib.import_module(f"bench.cli.{name}").COMMAND for name in NAMES}
OF_MAKE = (
    Command("setup", "set up", "set up .venv; the other targets do so when they need it"),
    Command("test", DEVELOP, "the test suite; ARGS=\"-k name\" for a part of it", "[QUICK=1]", needs=COURSE),
    Command("lint", DEVELOP, "style checks, and which package may import which"),
    Command("clean", DEVELOP, "remove caches and build outputs; keeps .venv and results"),
)  # fmt: skip

# Aliases: the command that each one runs. Not listed in the help.
ALIASES = {
    "bench": "run",
    "unsynced-init": "mistake unsynced-init",
    "plots": "report --format=plots",
    "jupyter": "notebooks open",
    "release": "course release",
    "grade": "course grade",
    "install-horovod": "install horovod",
}
# Names of version 0.1. Each runs under its new name, which it prints, until version 0.3.
RENAMED = {
    "scaling": "compare scaling",
    "accuracy": "compare accuracy",
    "emulate": "cluster emulate",
    "breakdown": "profile",
    "knobs": "sweep",
    "lab": "mistake demo",
    "check": "mistake check",
    "advise": "predict mode",
    "memory": "predict memory",
    "forecast": "predict step",
    "gpu-check": "doctor gpu",
    "predict-images": "infer",
    "watch": "status",
    "table": "report --format=md",
    "pool": "report --by=machine",
    "leaderboard": "report --by=student",
    "slides": "site slides",
    "export": "course export",
    "solutions-check": "course check",
    "new-workload": "install workload",
    "unpack-imagenet": "install imagenet",
}
GONE = {
    "selfbench": "python -m tests.validation.overhead",
    "forecast-check": "python -m tests.validation.forecast",
    "renew": "python -m tests.validation.renew",
}


def all_commands() -> list[Command]:
    """All commands that run something, each followed by its subcommands."""
    return [part for command in COMMANDS.values() for part in (command, *command.parts.values()) if part.run]
