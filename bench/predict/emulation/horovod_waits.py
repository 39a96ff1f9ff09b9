"""Horovod's waiting, where many ranks share a core. It imports nothing of Horovod or torch."""

import sys
import time

ASK_AGAIN_S = 0.0005


def leave_cores() -> None:
    """Let a rank of Horovod that waits for the others sleep between two questions. By itself it asks again without a
    pause (horovod/torch/mpi_ops_v2.cc, WaitAndClear), which takes a core; many ranks that share cores then hold each
    other up. To be called when Horovod has been imported; without it nothing happens."""
    if (library := sys.modules.get("horovod.torch.mpi_lib_v2")) is None:
        return
    wait = library.horovod_torch_wait_and_clear

    def wait_asleep(handle: int) -> None:
        while not library.horovod_torch_poll(handle):
            time.sleep(ASK_AGAIN_S)
        wait(handle)

    library.horovod_torch_wait_and_clear = wait_asleep
