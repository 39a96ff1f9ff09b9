from bench.cli.base import Command, action
from bench.config.flags import SWITCH

COMMAND = Command(
    "status", "results", "watch a run that is in progress, rank by rank", "RUNS=folder", run=action("status"),
    positional={"runs": {"metavar": "RUNS", "help": "folder of a run, or of runs [results/runs]"}},
    flags={"--once": SWITCH | {"help": "show it once and end"}}, gone={"--out": "--runs=FOLDER"},
)  # fmt: skip
