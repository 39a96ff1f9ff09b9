from bench.cli.base import HOROVOD, Command, action
from bench.config.options import UNSET

COMMAND = Command(
    "run", "measure", "one training run; prints a table, and `record: PATH` as its last line", "MODE=ddp GPUS=4",
    run=action("run"), target="bench", options=True, own={"mode": UNSET["mode"]}, needs=HOROVOD,
)  # fmt: skip
