"""What carries messages between ranks: one line for each way, and the mode whose ranks join by it."""

from dataclasses import dataclass

from bench.analysis import style
from bench.config.modes import MODES, Look, ModeInfo

CARRIERS = {"gloo": "Gloo", "nccl": "NCCL"}


@dataclass(frozen=True)
class Backend:
    """name: on the command line and in records. mode: of the ranks. title: in tables and pictures, {} for what carries
    the messages. look: in pictures. device: the only one between which it is measured, where there is only one."""

    name: str
    mode: str
    title: str
    look: Look
    device: str = ""

    @property
    def info(self) -> ModeInfo:
        """The line of its mode in the table."""
        return MODES[self.mode]


def looks_of(mode: str) -> Look:
    """The look of a mode."""
    return MODES[mode].look


LINES = (
    Backend("gloo", "ddp", "Gloo", looks_of("ddp"), "cpu"),
    Backend("nccl", "ddp", "NCCL", style.SPARE[1], "cuda"),
    Backend("horovod", "horovod", "Horovod over {}", looks_of("horovod")),
)
BACKENDS = {backend.name: backend for backend in LINES}
