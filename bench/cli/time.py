from bench.cli.base import FROM_1, OUT, Command, action
from bench.config.flags import SWITCH, number

COMMAND = Command(
    "time", "measure", "your own training script, timed unchanged and checked for known mistakes",
    'CMD="torchrun --nproc-per-node=2 train.py" [BATCH=32 STEPS=100]', run=action("time_script"), rest=True, flags={
        "--cmd": {"help": "the command that trains, quoted as in a shell; or write it after --"},
        "--batch": FROM_1 | {"help": "examples per device per step [counted from the loader]"},
        "--warmup": FROM_1 | {"default": "20", "help": "first steps that are not timed [20]"},
        "--steps": FROM_1 | {"help": "stop the script after this many timed steps [at its end]"},
        "--watch": SWITCH | {"help": "check for known mistakes [1]"},
        "--label": {"help": "name in tables [the script's file name]"},
        "--limit": {"help": "stop the command after this many seconds [no limit]",
                    "read": number("seconds, a number above 0")},
        "--out": OUT,
    }, note="The record has its own format: report, diff and mistake check read it; compare does not.",
)  # fmt: skip
