from bench.cli.base import Command, action
from bench.config.flags import SWITCH, number

COMMAND = Command(
    "diff", "results", "compare two folders of records: two machines, two versions of torch, before and after",
    "A=folder B=folder [BOUND=5 STRICT=1]", run=action("diff"), positional={
        "a": {"metavar": "A", "help": "folder of the first set, or one record.json"},
        "b": {"metavar": "B", "help": "folder of the second set: each ratio is B over A"},
    }, flags={
        "--bound": {"metavar": "PERCENT", "help": "exit code 3 when the whole 95 %% interval is slower by more than "
                    "this; disturbed records, and fewer than 3 on a side, are not judged",
                    "read": number("write per cent, from 0 to below 100", lambda bound: 0 <= bound < 100)},
        "--strict": SWITCH | {"help": "exit code 3 unless every interval is within BOUND; what cannot be judged fails"},
    },
)  # fmt: skip
