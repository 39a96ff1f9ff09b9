"""What a study is: a question, the programs that answer it, and the parts that say and draw what came of it."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.analysis.stats import FEWEST_ROUNDS
from bench.config.command_line import OF_IMAGES
from bench.config.fields import in_words
from bench.config.modes import COMPARED, MODES
from bench.config.options import FIELDS, KNOBS, UNSET, RunConfig, when_not_given
from bench.launch.cluster.plan import repeated

QUICK_ROUNDS = 2
# What a study decides by itself for each of its programs: not part of the command that repeats it.
DECIDED = ("mode", "num_devices", "launcher", "out", "baselines", "profile", "sync", "checkpoint")


@dataclass(frozen=True)
class Hooks:
    """Functions of a suite that a study's result.py may have, where it says so: HOOKS = Hooks(notes=notes). What they
    return is that of ``Study``'s methods of these names; without one a study says what most do."""

    about: Callable | None = None
    heading_of: Callable | None = None
    warning: Callable | None = None
    said_of: Callable | None = None
    notes: Callable | None = None


@dataclass(frozen=True)
class Study:
    """One line of the registry.

    name: in records and on the command line of reports. folder: below bench/studies; it has study.py, result.py and
    figures.py. command: of `bench`, and of make. heading, question: on the page. help: on the command line.
    plans: (console, asked, flags) -> a ``Plan`` for each suite that the command runs. Raises UserError for what cannot
    be studied. flags: what the command takes besides the options of a run, as argparse wants them. defaults: options
    with another default here; others: workload -> those that are another there. sets: options that it sets itself, and
    refuses when they are given. rounds: unless given. enough: rounds of a suite that a newer one with fewer does not
    replace on the page. seeded: it trains to the end, and each round has a seed of its own. most: its devices are a
    maximum. named_by: the variable that says what a suite is about, where there are several kinds. questions: what a
    suite is about -> a question of its own. card: on the page its suites are cards in one row. auto: it takes
    ROUNDS=auto, and goes by the verdicts of its pairs. partial: a program that does not fit into a device's memory is
    left out, and the others go on.
    """

    name: str
    command: str
    heading: str
    question: str
    help: str
    plans: Callable
    group: str = "measure"
    example: str = "GPUS=2"
    folder: str = ""
    flags: dict[str, dict] = field(default_factory=dict)
    defaults: dict = field(default_factory=dict)
    others: dict[str, dict] = field(default_factory=dict)
    sets: tuple[str, ...] = ()
    rounds: int = 5
    enough: int = FEWEST_ROUNDS
    seeded: bool = False
    most: bool = False
    named_by: str = ""
    questions: dict[str, str] = field(default_factory=dict)
    card: bool = False
    auto: bool = False
    partial: bool = False

    def part(self, name: str):
        """A module of its folder: "result" or "figures". They are imported when a suite is looked at, not to run it."""
        return importlib.import_module(f"bench.studies.{self.folder or self.name}.{name}")

    def result(self, suite):
        """A suite compared. Raises UserError when it cannot be."""
        return self.part("result").compare(suite)

    def answer(self, result) -> list[str]:
        """What came of it, in words."""
        return self.part("result").answer(result)

    def summary(self, result) -> list:
        """The tables of the terminal, as ``Grid``s."""
        return self.part("result").summary(result)

    def grids(self, result) -> list:
        """The tables of the page, as ``Grid``s."""
        return self.part("result").grids(result)

    def figures(self, result) -> dict:
        """The pictures by name, in the order in which they should be read. matplotlib is imported here, not before."""
        drawn = {name: draw(result) for name, draw in self.part("figures").FIGURES[self.name].items()}
        found = {name: figure for name, figure in drawn.items() if figure is not None}
        if result.suite.disturbed:
            from bench.analysis import style  # not for a list of commands

            for figure in found.values():
                style.to_grey(figure)
        return found

    # --- what most studies have nothing of: the hooks of their result.py --------------------------------------------

    def ask(self, name: str, suite, otherwise):
        """What a hook of its result.py says of a suite; ``otherwise`` where it has none. Raises AttributeError for a
        function with the name of a hook that is not in HOOKS: nobody would call it."""
        module = self.part("result")
        hook = getattr(getattr(module, "HOOKS", Hooks()), name)
        if hook is None and hasattr(module, name):
            raise AttributeError(f"{module.__name__} has {name}, but not in its HOOKS")
        return hook(suite) if hook else otherwise

    def about(self, suite) -> str:
        """What a suite is about, where the study has several kinds: a mode, a replay, a mistake; else empty."""
        return self.ask("about", suite, "") if self.named_by else ""

    def heading_of(self, suite) -> str:
        about = self.about(suite)
        return self.ask("heading_of", suite, f"{self.heading}: {about}" if about else self.heading)

    def question_of(self, suite) -> str:
        return self.questions.get(self.about(suite), self.question)

    def warning(self, suite) -> str:
        """A warning above a suite's answer; most have none."""
        return self.ask("warning", suite, "")

    def said(self, suite) -> list[tuple[str, str]]:
        """What is said in addition to the answer: (heading, text)."""
        return self.ask("said_of", suite, [])

    def notes(self, suite) -> list[str]:
        """What must be known of a suite's runs, besides what their records say."""
        return self.ask("notes", suite, [])

    def repeat(self, suite) -> str:
        """The make command that repeats a suite: the options that its largest programs have in common."""
        configs = [record.config for record in suite.records]
        most = max(config.num_devices for config in configs)
        configs = [config for config in configs if config.num_devices == most]
        words = ["make", self.command, f"{'MAX_GPUS' if self.most else 'GPUS'}={most}"]
        words += [f"{'SEEDS' if self.seeded else 'ROUNDS'}={'auto' if suite.looks else max(1, suite.n)}"]
        words += [f"MAX_MINUTES={suite.first.config.label.limit_minutes:g}"] if suite.looks else []
        words += [f"{self.named_by}={about}"] if (about := self.about(suite)) else []
        if "--modes" in self.flags and self.named_by != "MODES":
            modes = {record.config.mode for record in suite.records}
            modes = [mode for mode in MODES if mode in modes and not MODES[mode].baseline]
            words += [f"MODES={','.join(modes)}"] if modes != COMPARED else []
        decided = {*DECIDED, *self.sets}
        if self.named_by == "NAME":  # a lab runs in the mode that it is asked for
            decided -= {"mode"}
        if self.seeded:  # its rounds' seeds go on from the first one
            decided |= {"seed"}
            words += [f"SEED={seed}" for seed in [min(config.seed for config in configs)] if seed]
        defaults, workload = self.defaults, suite.first.workload.name
        if workload != "images":
            defaults = {name: value for name, value in defaults.items() if name not in OF_IMAGES}
        defaults = defaults | self.others.get(workload, {})
        for f in FIELDS.values():
            values = [asked(c, f.name) for c in configs if f.name not in KNOBS or f.name in MODES[c.mode].knobs]
            unsaid = defaults.get(f.name, when_not_given(configs[0], f))
            if f.name not in decided and len(set(map(str, values))) == 1 and values[0] not in (None, unsaid):
                words.append(in_words(f, values[0]))
        return repeated(" ".join(words), suite.first.network, configs[0].hosts)


def asked(config: RunConfig, name: str):
    """What was asked of an option: nothing where TUNED=1 has set it."""
    value, tuned = getattr(config, name), MODES[config.mode].tuned.get(config.device, {}) if config.tuned else {}
    return UNSET[name] if (name, value) in tuned.items() else value


@dataclass(frozen=True)
class Plan:
    """One suite to be run. programs: label -> config, the base first; once per round each. extra: label -> config, run
    once after the rounds (a profiled step). says: a record in a few words, while the suite goes on. may_fail: labels of
    programs whose failed record is their result."""

    study: Study
    programs: dict[str, RunConfig]
    extra: dict[str, RunConfig] = field(default_factory=dict)
    says: Callable | None = None
    may_fail: tuple[str, ...] = ()


@dataclass(frozen=True)
class Flags:
    """What a study's command was given besides the options of a run. rounds: None for the study's own number. minutes:
    the limit of rounds that go on until every pair has a verdict; None where their number is fixed."""

    rounds: int | None = None
    minutes: float | None = None
    quick: bool = False
    strict: bool = False
    replay: str | None = None
    max_gpus: int = 0
    name: str | None = None
    modes: str | None = None
