from bench.cli.base import HOROVOD, NUMBER, Command, action
from bench.config.flags import whole_number
from bench.tasks.network.plan import MOST_ROUNDS, SIZES

COMMAND = Command(
    "network", "measure", "messages and collectives over Gloo, NCCL and Horovod, and matrix products", "GPUS=2",
    run=action("network"), options=True, takes=(
        "num_devices", "device", "share_gpu", "gpu_ids", "threads", "timeout", "dist_url", "hosts", "remote", "iface",
        "launcher", "out",
    ), own={"num_devices": 2}, needs=HOROVOD, flags={
        "--backends": {"help": "gloo, nccl, horovod [all available]"},
        "--sizes": {"help": f"message sizes: a range, in factors of 4, or a list as 4KiB,1MiB [{SIZES}]"},
        "--repeats": {"help": "rounds, each with every size once [10]", "read": whole_number(1, MOST_ROUNDS)},
        "--max-minutes": NUMBER | {"help": "time limit; the largest sizes are left out if they do not fit [5]"},
    },
)  # fmt: skip
