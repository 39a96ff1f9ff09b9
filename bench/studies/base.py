"""What a study is: a question, the configurations that answer it, and the module that prints and draws the answer."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType

from bench.analysis.stats import FEWEST_ROUNDS
from bench.cluster.plan import repeated
from bench.config.combined import TEXT, is_part, words_of
from bench.config.command_line import OF_IMAGES, from_arguments
from bench.config.fields import in_words, variable_of
from bench.config.modes import COMPARED, MODES
from bench.config.options import FIELDS, KNOBS, UNSET, RunConfig, when_not_given

QUICK_ROUNDS = 2
LOOKS = (4, 8, 16, 32, 64)  # the interim analyses of ROUNDS=auto
MAX_MINUTES = 60.0  # its limit unless given
# Options that a study sets for each configuration: not part of the command that repeats it.
DECIDED = ("mode", "num_devices", "launcher", "out", "baselines", "profile", "sync", "checkpoint")


@dataclass(frozen=True)
class Study:
    """One line of the registry; README.md says what its folder contains."""

    name: str  # in records, and on the command line of reports
    command: str  # of `bench`, and of make
    heading: str  # on the page
    question: str
    help: str
    plans: Callable  # (console, asked, flags) -> a Plan for each suite; UserError for what cannot be studied
    read: Callable = from_arguments  # the parsed arguments -> ``asked``
    group: str = "measure"
    example: str = "GPUS=2"
    folder: str = ""  # below bench/studies, if it is not the name
    flags: dict[str, dict] = field(default_factory=dict)  # beside the options of a run, as argparse takes them
    defaults: dict = field(default_factory=dict)  # options with another default here
    others: dict[str, dict] = field(default_factory=dict)  # workload -> options with another default for it
    sets: tuple[str, ...] = ()  # options that it sets itself and refuses
    rounds: int = 5  # unless given
    enough: int = FEWEST_ROUNDS  # a newer suite with fewer rounds does not replace one with this many on the page
    seeded: bool = False  # it trains to the end, and each round has its own seed
    most: bool = False  # its number of devices is a maximum
    named_by: str = ""  # the variable that selects the subject of a suite, if there are several
    questions: dict[str, str] = field(default_factory=dict)  # subject of a suite -> its own question
    card: bool = False  # on the page its suites are cards in one row
    auto: bool = False  # it takes ROUNDS=auto: its answer is the verdicts of its pairs
    partial: str = ""  # a configuration is left out if it does not fit into "memory", or "any" of its runs fails

    @property
    def module(self) -> ModuleType:
        """Its result.py, imported to show a suite and not to run it."""
        return importlib.import_module(f"bench.studies.{self.folder or self.name}.result")

    def result(self, suite):
        """Compare a suite. Raises UserError if that is not possible."""
        return self.module.compare(suite)

    def answer(self, result) -> list[str]:
        return self.module.answer(result)

    def summary(self, result) -> list:
        """The tables of the terminal, as ``Grid``s; of throughput unless the study has its own."""
        from bench.analysis import tables  # rich: not for a list of commands

        return self.call_optional("summary", result) or [tables.comparison_grid(result)]

    def grids(self, result) -> list:
        """The tables of the page, as ``Grid``s; of throughput unless the study has its own."""
        from bench.analysis import style, tables

        caption = style.flagged("Each configuration", result.certificate)
        own = self.call_optional("summary", result)
        return own or [tables.pairs_grid(result), tables.programs_grid(result.suite, caption)]

    def figures(self, result) -> dict:
        """The figures by name, in reading order."""
        from bench.analysis import style

        drawn = {name: draw(result) for name, draw in self.module.FIGURES[self.name].items()}
        found = {name: figure for name, figure in drawn.items() if figure is not None}
        if result.suite.disturbed:
            for figure in found.values():
                style.to_grey(figure)
        return found

    def call_optional(self, name: str, suite, otherwise=None):
        function = getattr(self.module, name, None)
        return function(suite) if function else otherwise

    def about(self, suite) -> str:
        """The subject of a suite, if the study has several (a mode, a replay, a mistake); else empty."""
        return self.call_optional("about", suite, "") if self.named_by else ""

    def heading_of(self, suite) -> str:
        about = self.about(suite)
        return self.call_optional("heading_of", suite, f"{self.heading}: {about}" if about else self.heading)

    def question_of(self, suite) -> str:
        return self.questions.get(self.about(suite), self.question)

    def warning(self, suite) -> str:
        return self.call_optional("warning", suite, "")

    def explanations(self, suite) -> list[tuple[str, str]]:
        return self.call_optional("explanations", suite, [])

    def notes(self, suite) -> list[str]:
        """Notes on a suite's runs that are not in their records."""
        return self.call_optional("notes", suite, [])

    def repeat(self, suite) -> str:
        """The make command that repeats a suite: the options that its largest programs have in common."""
        configs = [record.config for record in suite.records]
        most = max(config.num_devices for config in configs)
        configs = [config for config in configs if config.num_devices == most]
        words = ["make", self.command, f"{'MAX_GPUS' if self.most else 'GPUS'}={most}"]
        words = words[:-1] if " GPUS=" in self.about(suite) else words  # they were swept
        words += [f"{'SEEDS' if self.seeded else 'ROUNDS'}={'auto' if suite.looks else max(1, suite.n)}"]
        words += [f"MAX_MINUTES={suite.first.config.label.limit_minutes:g}"] if suite.looks else []
        words += [f"{self.named_by}={about}"] if (about := self.about(suite)) else []
        if "--modes" in self.flags and self.named_by != "MODES":
            modes = {record.config.mode for record in suite.records}
            modes = [mode for mode in MODES if mode in modes and not MODES[mode].baseline]
            words += [f"MODES={','.join(modes)}"] if modes != COMPARED else []
        decided = {*DECIDED, *self.sets}
        if self.named_by == "NAME":  # a mistake demo runs in the given mode
            decided -= {"mode"}
        if self.seeded:  # its rounds' seeds count up from the first one
            decided |= {"seed"}
            words += [f"SEED={seed}" for seed in [min(config.seed for config in configs)] if seed]
        defaults, workload = self.defaults, suite.first.workload.name
        if workload != "images":
            defaults = {name: value for name, value in defaults.items() if name not in OF_IMAGES}
        defaults = defaults | self.others.get(workload, {})
        for f in FIELDS.values():
            if is_part(f):
                continue
            if f.name in TEXT:
                unsaid = defaults.get(f.name)
                given = {words_of(f.name, lambda name, c=c: UNSET[name] if name in decided else given_value(c, name))
                         or (in_words(f, UNSET[f.name]) if unsaid else None) for c in configs}  # fmt: skip
                words += given - {None, f"{variable_of(f)}={unsaid}"} if len(given) == 1 else ()
                continue
            values = [given_value(c, f.name) for c in configs if f.name not in KNOBS or f.name in MODES[c.mode].knobs]
            unsaid = defaults.get(f.name, when_not_given(configs[0], f))
            if f.name not in decided and len(set(map(str, values))) == 1 and values[0] not in (None, unsaid):
                words.append(in_words(f, values[0]))
        return repeated(" ".join(words), suite.first.network, configs[0].hosts)


def given_value(config: RunConfig, name: str):
    """The option as the user gave it; not given if TUNED=1 set it."""
    value, tuned = getattr(config, name), MODES[config.mode].tuned.get(config.device, {}) if config.tuned else {}
    return UNSET[name] if (name, value) in tuned.items() else value


@dataclass(frozen=True)
class Plan:
    """One suite to run."""

    study: Study
    programs: dict[str, RunConfig]  # by label, the base first; each once per round
    extra: dict[str, RunConfig] = field(default_factory=dict)  # run once after the rounds: a profiled step
    says: Callable | None = None  # a record in a few words, for the progress of the suite
    may_fail: tuple[str, ...] = ()  # labels of programs whose failed record is their result


@dataclass(frozen=True)
class Flags:
    """Flags of a study's command, in addition to the options of a run."""

    rounds: int | None = None  # None: the study's own number
    minutes: float | None = None  # the limit of ROUNDS=auto; None where the number of rounds is fixed
    quick: bool = False
    strict: bool = False
    replay: str | None = None
    max_gpus: int = 0
    name: str | None = None
    modes: str | None = None
