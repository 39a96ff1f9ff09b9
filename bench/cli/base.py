"""Commands, and how their arguments are parsed."""

import argparse
import difflib
import functools
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bench.config import file, synonyms
from bench.config.combined import RENAMED
from bench.config.command_line import Default, add_arguments
from bench.config.fields import variable_of
from bench.config.flags import SWITCH, number, rounds, whole_number
from bench.config.options import FIELDS
from bench.errors import MOST_LETTERS, UserError, printable, shortened
from bench.files import CLONE as IS_CLONE
from bench.studies.base import MAX_MINUTES, Study

DEVELOP = "work on this project"  # the group of commands for developers
GROUPS = ("measure", "explain", "check", "results", "learn", "teach", "set up", DEVELOP)
HOROVOD, COURSE, CLONE = ("horovod",), ("course",), ("clone",)
DEFAULT_FOLDER = "results/runs"
SEEN = "BENCH_SEEN"  # in the environment: variables named like options that a parent `bench` has seen
ALL, MARGIN = "--help-all", 28  # characters before the text of an option
ORDINARY = ("NAME",)  # not meant as an option: the host's name, in every shell of WSL
READ = (  # variables that people type, and that give no error when misspelt
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT", "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
)  # fmt: skip
# Arguments that several commands have.
NUMBER, FROM_1 = {"read": number()}, {"read": whole_number(1)}
RECORDS = {"metavar": "RECORDS", "help": f"a record, or a folder of records [{DEFAULT_FOLDER}]"}
OUT = {"metavar": "FOLDER", "help": f"folder for the record [{DEFAULT_FOLDER}]"}
EDITION = {"--edition": {"choices": ("en", "zh"), "default": "en",  # not LANG, which every shell sets
                         "help": "zh: in Chinese, where it is translated (LANG is the shell's) [en]"}}  # fmt: skip
NAME = {"help": "only those whose names begin with this: 03, or 03,07"}


def action(module: str) -> Callable:
    """``run`` of a module in bench/cli/actions, imported when it is called."""
    return lambda *arguments: importlib.import_module(f"bench.cli.actions.{module}").run(*arguments)


@dataclass(frozen=True)
class Command:
    """A command of `bench`, and a target of make.

    name: on the command line; of a part of a command both words, as "predict memory". group: one of GROUPS. example:
    variables that people give to make most often. run: (args) -> exit code, or None for 0; None for a command that is
    only its parts, and for a target of make only. target: of make, if it has another name. flags: flag -> argparse's
    options, and "read": (variable, text) -> the value for ``run`` (bench/config/flags.py). positional: arguments that
    may also be given as flags of the same name, as make does it; several, with nargs, are joined by commas.
    options: it takes the options of a run; takes: only these of them; knobs: and those of single modes; own: options
    with another default here; others: workload -> the same. needs: "horovod" (installed first, where make calls it),
    "course" (the packages of the course), "clone" (files that are in no package), "sets" (a clone, unless SETS names a
    folder). rest: a user's command follows --, and is ``args.rest``. note: below the help. parts: a second word -> its
    command. gone: flags of version 0.1 -> what replaces them.
    """

    name: str
    group: str
    help: str
    example: str = ""
    run: Callable | None = None
    target: str = ""
    flags: dict[str, dict] = field(default_factory=dict)
    positional: dict[str, dict] = field(default_factory=dict)
    options: bool = False
    takes: tuple[str, ...] = ()
    knobs: bool = False
    own: dict = field(default_factory=dict)
    others: dict = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    rest: bool = False
    note: str = ""
    parts: "dict[str, Command]" = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        if isinstance(self.parts, tuple):
            object.__setattr__(self, "parts", {part.name.split()[1]: part for part in self.parts})

    @property
    def make(self) -> str:
        return self.target or self.name

    def parser(self) -> "Parser":
        more = [f"bench {part.name:{max(len(each.name) for each in self.parts.values())}}  {part.help}"
                for part in self.parts.values()]  # fmt: skip
        parser = Parser(
            prog=f"bench {self.name}", description=self.help, epilog="\n".join(filter(None, [self.note, *more])),
            usage=" ".join([f"bench {self.name}", *(f"[{each['metavar']}]" for each in self.positional.values()),
                            "[--option=value ...]", *(["-- COMMAND ..."] if self.rest else [])]),
        )  # fmt: skip
        parser.gone = self.gone
        if self.options:
            add_arguments(parser, self.own, self.others, self.takes, self.knobs)
            parser.add_argument("--config", metavar="CONFIG", help="TOML file of options; those given here count")
        for flag, options in self.flags.items():
            parser.add_argument(flag, **{name: value for name, value in options.items() if name != "read"})
        for name, options in self.positional.items():
            parser.add_argument(f"--{name}", dest=name, metavar=options["metavar"], help=argparse.SUPPRESS)
            parser.add_argument(f"{name}_", **{"nargs": "?"} | options)
        return parser

    def parse(self, words: list[str]) -> argparse.Namespace:
        """Parse the words after the command's name. If an argument is given in both ways, the flag counts."""
        end = words.index("--") if self.rest and "--" in words else len(words)
        parser = self.parser()
        args = parser.parse_args(words[:end])
        args.rest, args.known = words[end + 1 :], parser.names()
        for name in self.positional:
            if getattr(args, name) is None:
                value = getattr(args, f"{name}_")
                setattr(args, name, ",".join(value) or None if isinstance(value, list) else value)
        for flag, options in self.flags.items():
            name = flag[2:].replace("-", "_")
            if "read" in options and (text := getattr(args, name)) is not None:
                setattr(args, name, options["read"](name.upper(), text))
        if self.options:
            for name, text in file.read(args.config, self.name == "sweep").items() if args.config is not None else ():
                if not hasattr(args, name):
                    option = variable_of(FIELDS[name])
                    raise UserError(f"CONFIG={args.config}: `bench {self.name}` has no {option}: leave it out")
                if getattr(args, name) is None or isinstance(getattr(args, name), Default):
                    setattr(args, name, text)
            replace_special_values(args)
        return args

    def missing_clone(self, args: argparse.Namespace) -> bool:
        """Whether it needs files of a clone, but this package was installed without one."""
        return not IS_CLONE and ("clone" in self.needs or ("sets" in self.needs and not args.sets))

    def unused_variables(self, words: list[str], args: argparse.Namespace) -> list[str]:
        """Environment variables named like an option of this command that was not given: they are ignored. Those that a
        parent `bench` has seen are left out, as when a chapter runs a command."""
        found = {variable(name).rstrip("="): name for name in args.known}
        found = {name: flag for name, flag in found.items() if os.environ.get(name) and name not in ORDINARY}
        seen = os.environ.get(SEEN, "").split()
        os.environ[SEEN] = " ".join({*seen, *found})
        given = {word.partition("=")[0][2:] for word in words if word.startswith("--")}
        given |= {name for name in self.positional if getattr(args, name) is not None}
        return [name for name, flag in found.items() if name not in seen and flag not in given]


class Help(argparse.RawDescriptionHelpFormatter):
    """Each option on the line of its help."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=MARGIN, width=max(100, shutil.get_terminal_size().columns - 2))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return ", ".join(action.option_strings) or super()._format_action_invocation(action)


def is_hidden(action: argparse.Action, modes: list[str]) -> bool:
    if of := getattr(action, "modes", None):
        return not {*of} & {*modes}
    return getattr(action, "advanced", False)


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line and exit code 2, a shortened flag is an error, and a misspelt one gets a
    suggestion."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, formatter_class=Help, **options)
        self.add_argument(ALL, action="help", help=argparse.SUPPRESS)

    def parse_args(self, words: list[str]) -> argparse.Namespace:
        if ALL in words or {"-h", "--help"} & {*words}:
            print(self.help_of(words), end="")
            self.exit(0)
        args, unknown = self.parse_known_args(words)
        if unknown:
            self.error(self.unknown(unknown[0].partition("=")[0]))
        for name, value in vars(args).items():
            if isinstance(value, list) and not name.endswith("_"):  # what argparse makes of --gpus=--
                self.error(f"{variable('--' + name)}--: not a value")
        return args

    def unknown(self, word: str) -> str:
        """The error for an unknown argument, also as a user of make writes it."""
        if new := self.gone.get(word):
            return f"{word} ({variable(word)}) is {new} ({variable(new)}) since version 0.2"
        if (new := RENAMED.get(word[2:], "")).partition("=")[0] in self.names():
            return f"{word} ({variable(word)}) is --{new} ({variable(new)}) since version 0.2"
        if not word.startswith("--"):  # -b, or a word without a flag
            hint = synonyms.advice(word[1:2] if word.startswith("-") else "", self.names())
            return f"{word}: not an argument of this command{f': {hint}' if hint else ''}"
        hint = synonyms.advice(word[2:], self.names())
        near = [] if hint else [f"--{name} ({variable(name)})" for name in nearest(word[2:], self.names())]
        hint = hint or (f"did you mean {' or '.join(near)}?" if near else "this command has no such option")
        return f"unknown option {word} ({variable(word)}): {hint}"

    def help_of(self, words: list[str]) -> str:
        """The requested help: with --help-all every option, otherwise those that are not advanced, and the
        mode-specific ones of the given MODE."""
        modes = [word for before, word in zip(["", *words], words, strict=False) if before == "--mode"]
        modes += [word.removeprefix("--mode=") for word in words if word.startswith("--mode=")]
        left_out = [] if ALL in words else [action for action in self._actions if is_hidden(action, modes)]
        for action in left_out:
            action.help = argparse.SUPPRESS
        text = self.format_help()
        if not left_out:
            return text
        of_modes = (
            ""
            if modes or not any(action.modes for action in left_out)
            else (f". Options of a mode, such as DDP's bucket size: `{self.prog} --mode=ddp --help`")
        )
        return f"{text}\n{len(left_out)} more options: `{self.prog} {ALL}`{of_modes}\n"

    def names(self) -> list[str]:
        return [flag[2:] for flag in self._option_string_actions if flag.startswith("--")]

    def error(self, message: str) -> None:
        self.exit(2, f"bench: {shortened(printable(message), MOST_LETTERS)} (see `{self.prog} --help`)\n")


def nearest(word: str, names: Iterable[str]) -> list[str]:
    """The names that a misspelt word is nearest to: the most similar one, and up to two nearly as similar.

    >>> nearest("modl", ["lr", "mode", "model", "out"])
    ['model', 'mode']
    >>> nearest("colour", ["lr", "mode", "model", "out"])
    []
    """
    near = difflib.get_close_matches(word, names, n=3)
    similarity = [difflib.SequenceMatcher(None, name, word).ratio() for name in near]
    return [name for name, ratio in zip(near, similarity, strict=True) if ratio > similarity[0] - 0.15]


def misspelt_variables(names: Iterable[str]) -> list[tuple[str, str]]:
    """(name, suggestion) of environment variables that nothing reads, but whose name is similar to one that torch or
    CUDA reads.

    >>> misspelt_variables(["CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES", "MKL_NUM_THREADS", "HOME"])
    [('CUDA_VISIBLE_DEVICE', 'CUDA_VISIBLE_DEVICES')]
    """
    near = [(name, difflib.get_close_matches(name, READ, n=1, cutoff=0.93)) for name in names if name not in READ]
    return [(name, found[0]) for name, found in near if found]


def variable(flag: str) -> str:
    """The variable of make for a flag.

    >>> variable("--image-size"), variable("--link=RATE")
    ('IMAGE_SIZE=', 'LINK=RATE')
    """
    name, _, value = flag.lstrip("-").partition("=")
    return f"{name.replace('-', '_').upper()}={value}"


def replace_special_values(args: argparse.Namespace) -> None:
    """Replace values with a special meaning: GPUS=all, and DIST_URL=env://, torch's name for its default. Raises
    UserError for GPUS=all without a GPU."""
    if getattr(args, "dist_url", None) == "env://":
        args.dist_url = None
    if getattr(args, "num_devices", None) == "all":
        args.num_devices = all_devices(args)


def all_devices(args: argparse.Namespace) -> str | None:
    """GPUS=all: the visible GPUs of this machine; None if HOSTS or an external launcher sets the number."""
    from bench.launch.seat import seat_of
    from bench.measure.nvml import visible_gpus

    if getattr(args, "hosts", None) or os.environ.get("BENCH_HOSTS") or seat_of(os.environ):
        return None
    if args.device == "cpu" or not (gpus := visible_gpus()):
        raise UserError("GPUS=all, but this run uses no GPU: give the number of CPU processes, as in GPUS=2")
    return str(len(gpus))


def require_argument(name: str, text: str | None) -> str:
    """An argument that must be given. Raises UserError without it."""
    if not text:
        raise UserError(f"{name}=… is needed: see `bench help`")
    return text


def warn(text: str) -> None:
    """Print one line on standard error, without control characters."""
    print(shortened(printable(text), MOST_LETTERS), file=sys.stderr, flush=True)


def require_writable(option: str, folder: Path) -> None:
    """Make a folder. Raises UserError if it is not writable, before any work is done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"{option}: {folder} cannot be written to ({error.strerror}): name another folder") from None


def study_command(study: Study, positional: dict | None = None, parts: tuple[Command, ...] = ()) -> Command:
    """The command of a study: its own flags, those of rounds or seeds, and the options of a run."""
    auto = "; auto: until every pair has a verdict" if study.auto else ""
    count = {"--rounds": {"help": f"interleaved rounds{auto} [{study.rounds}]", "read": rounds}}
    if study.auto:
        count["--max-minutes"] = NUMBER | {
            "metavar": "MAX_MINUTES",
            "help": f"time limit of ROUNDS=auto [{MAX_MINUTES:g}]",
        }
    if study.seeded:
        count = {"--seeds": FROM_1 | {"help": f"seeds, one per round, from SEED on [{study.rounds}]"}}
    quick = {"--quick": SWITCH | {"help": "2 rounds: a preview, without confidence interval and verdict"}}
    run = functools.partial(action("studies"), study)
    return Command(study.command, study.group, study.help, study.example, run, flags=count | quick | study.flags,
                   positional=positional or {}, options=True, own=study.defaults, others=study.others, needs=HOROVOD,
                   parts=parts)  # fmt: skip
