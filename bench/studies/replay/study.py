"""A classic unfairness on purpose: how far does one unfair setting move the verdict?

Three configurations: the base, another under equal conditions, and the other under unfair conditions.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from bench.config.options import UNSET, RunConfig
from bench.errors import UserError
from bench.studies.base import Flags, Plan, Study
from bench.studies.programs import available, even_threads, in_mode, prepare, refuse

VARIANTS = ("base", "fair", "unfair")


@dataclass(frozen=True)
class Replay:
    base: str  # a mode, like program
    program: str
    change: str  # the unfair change, in words
    unfair: dict  # the changed option -> its value, or a function of the fair config; empty for the control
    moves: dict[str, str]  # device -> the expected direction of the verdict; "" if unknown in advance
    common: dict  # defaults of all three runs, so that the effect is visible

    @property
    def changes(self) -> str:
        return "".join(self.unfair)


REPLAYS = {
    "dp-workers": Replay(
        "ddp", "dp", "one loader worker for all devices, but the others have one per rank",
        {"workers": 1}, {"cpu": "slower", "cuda": "slower"},
        {"data": "digits", "storage_ms": 8.0},  # on two CPU cores one worker is too slow, and two are not
    ),
    "horovod-fp16": Replay(
        "ddp", "horovod", "only Horovod sends its gradients in 16 bits: half the bytes, for two conversions",
        {"compression": "fp16"}, {"cpu": "slower", "cuda": "faster"}, {},  # on one host it saves nothing
    ),
    "ddp-barrier": Replay(
        "single", "ddp", "only DDP has a barrier and three reductions that the host waits for in every step",
        {"step_barrier": True}, {"cpu": "slower", "cuda": "slower"},
        # It costs one or two milliseconds, which is visible in short steps with little to send.
        {"model": "shufflenet_v2_x0_5", "image_size": 32, "per_device_batch": 2, "timed_steps": 300},
    ),
    "item-sync": Replay(
        "single", "ddp", "loss.item() every step: the host waits for the device. A CPU step waits anyway",
        {"item_sync": True}, {"cpu": "", "cuda": "slower"}, {},
    ),
    "batch-grows": Replay(
        "single", "ddp", "every rank takes as large a batch as single: the global batch grows with the ranks",
        {"per_device_batch": lambda config: config.global_batch}, {"cpu": "faster", "cuda": "faster"}, {},
    ),
    "nothing": Replay(
        "ddp", "ddp", "nothing: the same configuration three times (control)", {}, {"cpu": "", "cuda": ""}, {},
    ),
}  # fmt: skip


def plans(console, asked: RunConfig, flags: Flags) -> Iterator[Plan]:
    """One suite. Raises UserError for an unknown replay, and for STRICT, which refuses unfair comparisons."""
    name = flags.replay
    if flags.strict:
        raise UserError("a replay is unfair on purpose, but STRICT=1 rejects unfair comparisons: leave one of them out")
    if name not in REPLAYS:
        raise UserError(f"unknown REPLAY={name}: choose one of {', '.join(REPLAYS)}")
    refuse(asked, "mode")
    case = REPLAYS[name]
    missing = [mode for mode in (case.base, case.program) if mode not in available(console, asked)]
    if missing:
        raise UserError(f"REPLAY={name} needs MODE={missing[0]}, which cannot run here: run `bench doctor`")
    common = {option: value for option, value in case.common.items() if getattr(asked, option) == UNSET[option]}
    asked = dataclasses.replace(asked, **common)
    config = prepare(console, dataclasses.replace(asked, mode=case.program))
    console.print(f"replayed on purpose: {case.change}")
    yield Plan(REPLAY, programs(config, name))


def programs(config: RunConfig, name: str) -> dict[str, RunConfig]:
    """The three programs of a replay. Raises UserError if it would change nothing, or needs another workload."""
    case = REPLAYS[name]
    if "storage_ms" in case.common:
        if config.data == "synthetic" or config.workers:
            raise UserError(
                f"REPLAY={name} needs a data loader: use a DATA other than synthetic, and do not give WORKERS"
            )
        config = dataclasses.replace(config, workers=config.num_devices)
    config = even_threads(config)
    fair = in_mode(config, case.program)
    values = {name: value(fair) if callable(value) else value for name, value in case.unfair.items()}
    unfair = dataclasses.replace(fair, **values)
    if unfair == fair and case.unfair:
        raise UserError(f"REPLAY={name} has no effect with GPUS={config.num_devices}: use GPUS=2 or more")
    configs = dict(zip(VARIANTS, (in_mode(config, case.base), fair, unfair), strict=True))
    return {f"{variant}: {each.mode}": each.labelled(variant=variant) for variant, each in configs.items()}


REPLAY = Study(
    "replay", "compare", "A classic unfair comparison", "How far does one unfair setting move the verdict?",
    "an unfair comparison on purpose", plans, rounds=8, enough=6, auto=True, named_by="REPLAY",
    questions={"nothing": "The control: does a verdict move when nothing is changed?"},
)  # fmt: skip
STUDIES = (REPLAY,)
