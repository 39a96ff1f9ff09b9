"""What a known mistake is: its text, the switch that makes it, the detector that finds it, and its lab.

A mistake is one file in this folder. It imports no torch and nothing of the training: what injects it is handed the
``script`` (bench/training/script.py), and its detector is handed ``observed`` (bench/record/observed.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from bench.mistakes.measures import Measure, part_of


@dataclass(frozen=True)
class Requirement:
    """What must be there for a mistake to be made. met: a RunConfig -> whether it is. words: what to do otherwise."""

    words: str
    met: Callable


SEVERAL_PROCESSES = Requirement("several processes: MODE=ddp or horovod, GPUS=2 or more", lambda c: c.num_processes > 1)
SEVERAL_DEVICES = Requirement("several devices: GPUS=2 or more", lambda c: c.num_devices > 1)
EPOCHS = Requirement("a training by epochs: EPOCHS", lambda c: c.epochs)
SECOND_EPOCH = Requirement("a second epoch: EPOCHS=2 or more", lambda c: c.epochs > 1)
VALIDATION = Requirement("data with a validation set, which DATA=synthetic has not", lambda c: c.data != "synthetic")
CHECKPOINTS = Requirement("checkpoints: leave CHECKPOINT=0 out", lambda c: c.checkpoint is not False)


@dataclass(frozen=True)
class Question:
    """Evidence of what may be meant so. asks: the question that only the author of a script can answer."""

    evidence: str
    asks: str


@dataclass(frozen=True)
class Finding:
    """One mistake that was found in a run: its name, what shows it, what comes of it, and what to do.

    question: for what may be meant so, what to ask its author; empty for what is wrong in any case.
    """

    name: str
    title: str
    evidence: str
    consequence: str
    remedy: str
    question: str = ""

    def lines(self) -> list[str]:
        """The finding as lines of text."""
        parts = {"evidence": self.evidence, "by design?": self.question, "consequence": self.consequence,
                 "remedy": self.remedy}  # fmt: skip
        if not self.question:
            del parts["by design?"]
        return [f"{self.name}: {self.title}", *(f"  {name + ':':12} {text}" for name, text in parts.items())]


@dataclass(frozen=True)
class Lab:
    """The mistake compared with the right version (`bench mistake demo`).

    question: what the lab asks. seen: what a person would see of the mistake. measures: what is compared; the first is
    the primary measure, and its expected direction is fixed in advance. on_gpu: the measures there, where they are
    others. workload: the options that it needs for its mistake to be made and seen, where the user says nothing else.
    changes: facts of the parity certificate that the mistake itself changes. varies: options in which the two versions
    may differ though they define the work. hangs: the wrong version does not end, and its failed record is the result.
    pretrains: both versions load a PRETRAINED file, which a short training makes first.
    shows: what its picture has besides the primary measure: "metric" (the workload's) or "train_loss" (curves over
    epochs), "ranks", "files", "places", or "" for the next measure.
    """

    question: str
    seen: str
    measures: tuple[Measure, ...]
    on_gpu: tuple[Measure, ...] = ()
    workload: dict = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    varies: tuple[str, ...] = ()
    hangs: bool = False
    pretrains: bool = False
    shows: str = ""

    def measures_on(self, device: str) -> tuple[Measure, ...]:
        """The measures on a device, "cpu" or "cuda"; the first is the primary one."""
        return self.on_gpu if self.on_gpu and device == "cuda" else self.measures


@dataclass(frozen=True)
class Mistake:
    """One known mistake.

    title: what was done wrong, in a few words. consequence: what comes of it. remedy: what to do.
    detect: ``observed`` -> a sentence of evidence, or None; a Question where it may be meant so; evidence with texts of
    its own is a Finding.
    needs: the part of ``observed`` that the detector looks at, or several of which one is enough, with "|" between;
    "" where it is seen only in a run that failed.
    explains: names of mistakes that follow from this one: they are not said again beside it.
    watched: only a Watch sees it, and no run of this bench can make it: records say nothing of it.
    switch: the options that make a right run wrong; none: MISTAKE=<name> does, by ``overrides``, which are decisions of
    a script taken wrongly (methods of a subclass of ``Script``, bench/training/script.py, by name), or by
    ``sums_gradients``, which the modes ask. requires: what must be there for that. lab: none for what is only detected.
    """

    name: str
    title: str
    consequence: str
    remedy: str
    detect: Callable
    needs: str = ""
    switch: dict = field(default_factory=dict)
    overrides: dict[str, Callable] = field(default_factory=dict)
    sums_gradients: bool = False
    requires: tuple[Requirement, ...] = ()
    lab: Lab | None = None
    watched: bool = False
    explains: tuple[str, ...] = ()

    @property
    def wrong(self) -> dict:
        return self.switch or {"mistake": self.name}

    @property
    def warning(self) -> str:
        return f"a mistake made on purpose (MISTAKE={self.name}): {self.title}"

    def find(self, observed: dict) -> Finding | None:
        """The detector's finding; None where it finds nothing, or what it looks at was not observed."""
        found = self.detect(observed)
        if found is None or isinstance(found, Finding):
            return found
        evidence, question = (found.evidence, found.asks) if isinstance(found, Question) else (found, "")
        return Finding(self.name, self.title, evidence, self.consequence, self.remedy, question)

    def observed(self, observed: dict) -> bool:
        """Whether what shows it was observed."""
        return not self.needs or any(part_of(observed, part.split()) is not None for part in self.needs.split("|"))
