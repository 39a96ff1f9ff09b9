from bench.cli.base import HOROVOD, Command, action
from bench.studies.programs import MODES_FLAG

COMMAND = Command("verify", "check", "do all modes compute the same update on this machine?", "GPUS=2",
                  run=action("verify"), options=True, needs=HOROVOD, flags=MODES_FLAG)  # fmt: skip
