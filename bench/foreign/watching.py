"""The Watch that ``bench time`` has in every process that trains, without a line of the script's."""

import contextlib
import time

from torch import nn

from bench.observe import Watch
from bench.observe.counts import Counts, DataWaits
from bench.observe.draws import Draws
from bench.observe.norms import Norms
from bench.observe.probe import Unheard
from bench.observe.streams import Augmentation, StepRandom
from bench.observe.writers import WrittenFiles

HANG_S = 30.0
OF_BATCHES = (Counts, DataWaits, Norms, Draws, Augmentation, StepRandom)  # probes that see nothing without a loader


class Silent(Watch):
    """A Watch from the first optimizer on, which a Timer tells of loaders, models and steps. It prints nothing and
    meets no other rank. The models it is told at the first step: until then they may be wrapped. opened: see
    ``Opened``."""

    def __init__(self, opened: list):
        super().__init__(hang_s=HANG_S)
        self.spent_s, self.walked, self.started = 0.0, False, False
        self.probe(WrittenFiles).writers.opened_before(opened)

    def tell(self, what: str, *arguments) -> None:
        began = time.perf_counter()
        super().tell(what, *arguments)
        self.spent_s += time.perf_counter() - began

    def listen(self) -> None:
        """The Timer tells it of steps, and of the end."""

    def walk(self, loader) -> None:
        """A DataLoader is walked; None: the training begins without one."""
        self.walked |= loader is not None
        if not self.begun:
            self.begun = True
            with contextlib.suppress(Exception):  # it is called where the script walks its loader
                self.world.look()
            self.tell("begin", loader)

    def start(self, models: list[nn.Module], optimizers: list) -> None:
        """The first step is taken next. Raises UserError for models that cannot be watched."""
        self.follow(models[0] if len(models) == 1 else nn.ModuleList(models), optimizers)
        self.walk(None)
        self.tell("start")
        self.started = True

    def part(self) -> dict:
        part = super().part()
        if not self.walked:
            unseen = [key for probe in OF_BATCHES for key in probe.joins]
            part |= dict.fromkeys(unseen, Unheard("the script walks no DataLoader"))
        return part
