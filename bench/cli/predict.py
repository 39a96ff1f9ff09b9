"""Predictions of step time, memory and the best mode. Nothing is measured on the target machine."""

from bench.cli.base import FROM_1, HOROVOD, Command, action
from bench.config.flags import SWITCH, number, whole_number
from bench.studies.programs import MODES_FLAG
from bench.studies.registry import STUDIES

LINK = {"help": "rate and one-way latency of every device's link, as 10gbit,50us"}
STEP = Command(
    "predict step", "explain", "step time of each mode on more devices, from a profile of one device",
    "RECORD=record DEVICES=2,4,8 LINK=10gbit,50us [MODES=ddp,horovod EXPLAIN=1 OUT=folder]", run=action("predict_step"),
    options=True, takes=(
        "bucket_cap_mb", "overlap", "broadcast_buffers", "compression", "fusion_mb", "cycle_time_ms", "reshard",
        "prefetch", "out",
    ), note="Starts nothing; with OUT it draws pictures there.",
    positional={"record": {"metavar": "RECORD", "nargs": "*", "help": "record of a run on one device with PROFILE=1; "
                           "more records, or folders of them, on several devices: the forecast is fitted to them"}},
    flags={
        "--devices": {"help": "numbers of devices [2,4,8]"},
        "--link": LINK,
        "--network": {"metavar": "RECORD", "help": "a record of `bench network`, instead of LINK"},
        "--per-node": FROM_1 | {"help": "devices per node, which share its link [1]"},
        "--link-inside": {"metavar": "LINK", "help": "rate and latency between the devices of a node"},
        "--modes": {"help": "ddp, horovod, zero1, fsdp [all]"},
        "--points": {"metavar": "FOLDERS", "help": "folders of measured runs to draw beside it, separated by commas"},
        "--explain": SWITCH | {"help": "show where the time of a step goes"},
    },
)  # fmt: skip
MEMORY = Command(
    "predict memory", "explain", "memory per device, and the largest batch that fits",
    "MODEL=resnet50 BATCH=64 GPUS=4 MEMORY_GIB=16 [MODE=ddp]", run=action("predict_memory"), options=True,
    note="Starts nothing. Without MODE and MODES it predicts the modes that `bench compare` runs. MEMORY_GIB may be "
    "that of a GPU that is not here.", flags=MODES_FLAG,
)  # fmt: skip
MODE = Command(
    "predict mode", "explain", "which mode to use, from a few short runs or from records",
    "GPUS=2 [RECORDS=folder LINK=10gbit,50us DEVICES=8 PRICE=2.5]", run=action("predict_mode"), options=True,
    own={"num_devices": 2}, needs=HOROVOD, note="Predicted values are labelled and on separate lines.", flags={
        "--records": {"metavar": "FOLDER", "help": "run nothing: use these records of compare, profile and network"},
        "--rounds": FROM_1 | {"help": "interleaved rounds of its comparison [3]"},
        "--modes": STUDIES["compare"].flags["--modes"],
        "--link": LINK,
        "--devices": {"help": "predict this many devices, one per node", "read": whole_number(2)},
        "--price": {"help": "price of an hour of one device; without GPUs, of one machine",
                    "read": number("the price of an hour of one device, a number above 0")},
        "--examples": FROM_1 | {"help": "examples per epoch [size of the data set]"},
    }, gone={"--rate": "--link=RATE,LATENCY", "--nodes": "--devices"},
)  # fmt: skip
COMMAND = Command("predict", "explain", "does it fit (memory), how fast on more devices (step), which mode (mode)",
                  parts=(STEP, MEMORY, MODE))  # fmt: skip
