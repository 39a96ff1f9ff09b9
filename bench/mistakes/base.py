"""What a known mistake consists of: its text, how it is made on purpose, its detector, and its demo."""

from collections.abc import Callable
from dataclasses import dataclass, field

from bench.mistakes.measures import Measure, part_of


@dataclass(frozen=True)
class Requirement:
    """What a run needs for a mistake to be made. met: RunConfig -> bool. words: the requirement in words."""

    words: str
    met: Callable


SEVERAL_PROCESSES = Requirement("several processes: MODE=ddp or horovod, GPUS=2 or more", lambda c: c.num_processes > 1)
SEVERAL_DEVICES = Requirement("several devices: GPUS=2 or more", lambda c: c.num_devices > 1)
EPOCHS = Requirement("a training by epochs: EPOCHS", lambda c: c.epochs)
SECOND_EPOCH = Requirement("a second epoch: EPOCHS=2 or more", lambda c: c.epochs > 1)
VALIDATION = Requirement("data with a validation set (not DATA=synthetic)", lambda c: c.data != "synthetic")
CHECKPOINTS = Requirement("checkpoints: leave CHECKPOINT=0 out", lambda c: c.checkpoint is not False)


@dataclass(frozen=True)
class Evidence:
    """What a detector returns if a sentence is not enough.

    question: to the script's author, if the behaviour may be intended. title, consequence, remedy: replace those of
    the mistake.
    """

    text: str
    question: str = ""
    title: str = ""
    consequence: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Finding:
    """One mistake found in a run. question: to the author, if it may be intended; empty for a certain mistake."""

    name: str
    title: str
    evidence: str
    consequence: str
    remedy: str
    question: str = ""

    def lines(self) -> list[str]:
        parts = {"evidence": self.evidence, "by design?": self.question, "consequence": self.consequence,
                 "remedy": self.remedy}  # fmt: skip
        if not self.question:
            del parts["by design?"]
        return [f"{self.name}: {self.title}", *(f"  {name + ':':12} {text}" for name, text in parts.items())]


@dataclass(frozen=True)
class Lab:
    """The mistake compared with the right version (`bench mistake demo`).

    seen: what a person would notice. measures: the first is the primary measure, with its direction fixed in advance.
    on_gpu: the measures on a GPU, if they differ. workload: options that the mistake needs, unless the user sets them.
    changes: facts of the parity certificate that the mistake itself changes. varies: options in which the two versions
    may differ although they define the work. hangs: the wrong version does not end; its failed record is the result.
    pretrains: both versions load a PRETRAINED file, made first by a short training.
    shows: the second panel of its picture, next to the primary measure: "metric" (the workload's) or "train_loss"
    (curves over epochs), "ranks", "files", "places", or "" for the next measure.
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
        return self.on_gpu if self.on_gpu and device == "cuda" else self.measures


@dataclass(frozen=True)
class Mistake:
    """One known mistake.

    detect: ``observed`` (bench/record/observed.py) -> a sentence of evidence, an Evidence, or None.
    needs: the part of ``observed`` that the detector reads, or alternatives separated by "|"; "" if the mistake is
    only visible in a failed run. explains: mistakes that follow from this one and are not reported together with it.
    switch: options that make a right run wrong. Without it INJECT=<name> does, by ``overrides`` (methods of ``Script``
    in bench/training/script.py to replace) or by ``sums_gradients``, which the modes read. requires: conditions of the
    injection. lab: its demo; None if the mistake is only detected. recorded: it has no demo, but records of this
    project show it. case: the one in scripts/ that makes it in the fewest lines.
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
    recorded: bool = False
    explains: tuple[str, ...] = ()
    case: str = ""

    @property
    def watched(self) -> bool:
        return not (self.lab or self.recorded)

    @property
    def wrong(self) -> dict:
        return self.switch or {"mistake": self.name}

    @property
    def warning(self) -> str:
        return f"a mistake made on purpose (INJECT={self.name}): {self.title}"

    def find(self, observed: dict) -> Finding | None:
        """The detector's finding. The detector runs on every record, and returns None if a part is missing."""
        found = self.detect(observed)
        if found is None:
            return None
        if isinstance(found, str):
            found = Evidence(found)
        return Finding(self.name, found.title or self.title, found.text, found.consequence or self.consequence,
                       found.remedy or self.remedy, found.question)  # fmt: skip

    def observed(self, observed: dict) -> bool:
        return not self.needs or any(part_of(observed, part.split()) is not None for part in self.needs.split("|"))


def mistake(title: str, consequence: str, remedy: str, **fields) -> Callable:
    """Register a detector as the ``Mistake`` of its name. fields: the other fields of a Mistake."""

    def register(detect: Callable) -> Callable:
        detect.mistake = Mistake(detect.__name__.replace("_", "-"), title, consequence, remedy, detect, **fields)
        return detect

    return register


# --- words --------------------------------------------------------------------------------------------------------


def some(names: list[str]) -> str:
    """The first names and their number."""
    return ", ".join(names[:3]) + (f", … ({len(names)} in all)" if len(names) > 3 else "")


def numbers(ranks) -> str:
    return ", ".join(map(str, ranks))
