"""Words on the command line that nobody has thought of: a run's options, or one line and exit code 2."""

import contextlib
import io
import shlex

from hypothesis import example, given
from hypothesis import strategies as st

from bench.cli import COMMANDS, all_commands
from bench.config.command_line import from_arguments, make_command
from bench.config.fields import flag_of, variable_of
from bench.config.options import FIELDS, RunConfig
from bench.config.resolve import resolve
from bench.errors import UserError
from tests.fuzz import MARKS as pytestmark  # noqa: F401

ODD = ["", "0", "1", "-1", "2", "1e999", "NaN", "-0.0", "0x10", "1_000", " 5 ", "٣", "9" * 5000, str(10**30), "None",
       "auto",
       "cpu", "dp", "ddp", "a b", "$(x)", "'", '"', "`x`", "\n", "\x00", "\ud800", "..", "/", "s3://a:b@c", "file://",
       "=", "--", "-", "*", "a" * 5000, "true", "1:1:1", "kill:0:1", "resnet18", "digits", "1,2", "inf"]  # fmt: skip
values = st.sampled_from(ODD) | st.text(max_size=8)
flags = st.sampled_from([flag_of(f) for f in FIELDS.values()])
word = st.tuples(flags, values).map("=".join) | flags | values
EVERY = {command.name: command for command in all_commands()}


def config_of(words: list[str]) -> RunConfig | None:
    """The options of `bench run` with these words, as a machine with two cores has them; None where they are refused,
    in one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return resolve(from_arguments(COMMANDS["run"].parse(words)), "cpu", 2)
    except UserError as error:
        assert str(error)
    except SystemExit as end:
        assert end.code == 2 and said.getvalue().startswith("bench: "), said.getvalue()
    return None


@given(st.lists(word, max_size=6))
@example(["--batch=" + "9" * 400])
@example(["--gpus=--"])
def test_a_runs_options(words):
    if config := config_of([each for each in words if each not in ("-h", "--help")]):
        assert all(type(getattr(config, name)) in (int, float, str, bool, type(None)) for name in FIELDS)


@given(st.lists(st.tuples(flags, values), max_size=4))
def test_the_command_that_repeats_a_run_gives_the_same_run(pairs):
    """As make and a shell read it: NAME=value is --name=value, and quotes are the shell's."""
    config = config_of(["=".join(pair) for pair in pairs])
    if config and not any("\x00" in str(getattr(config, name)) for name in FIELDS):
        flag = {variable_of(f): flag_of(f) for f in FIELDS.values()}
        words = [each.partition("=") for each in shlex.split(make_command(config))[2:]]
        again = config_of([f"{flag[name]}={value}" for name, _, value in words])
        kept = [name for name in FIELDS if name != "out"]
        assert again and [getattr(again, n) for n in kept] == [getattr(config, n) for n in kept]


@given(st.sampled_from(sorted(EVERY)), st.lists(word | st.sampled_from(["--out", "--to=x", "--html"]), max_size=4))
def test_every_commands_words(name, words):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            EVERY[name].parse([each for each in words if each not in ("-h", "--help")])
    except SystemExit as end:
        assert end.code == 2 and said.getvalue().startswith("bench: "), said.getvalue()
