from bench.cli.base import Command, action
from bench.config.command_line import ON_OFF
from bench.proof.gpu_check.base import PARTS

GPU = Command(
    "doctor gpu", "check", "checks that only a GPU can answer; keeps their records in results/reference",
    "[BUDGET=45m PART=A1,B1 PLAN=1]", run=action("gpu_check"), options=True, takes=(
        "model", "image_size", "seed", "threads", "data_dir", "out", "num_devices", "gpu_ids",
    ), flags={
        "--budget": {"metavar": "TIME", "default": "45m", "help": "time limit, as 600s, 10m, 1h; checks that would not "
                     "fit are left out [45m]"},
        "--part": {"metavar": "PARTS", "help": f"{', '.join(PARTS)}, each ten minutes at most [all]"},
        "--plan": ON_OFF | {"help": "list the checks and their times; needs no GPU"},
    },
)  # fmt: skip
COMMAND = Command(
    "doctor", "check", "hardware and libraries of this machine, which modes it can run, and how to fix problems",
    run=action("doctor"), parts=(GPU,),
)  # fmt: skip
