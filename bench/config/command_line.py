"""Flags and make variables to a RunConfig, and back to the command that repeats a run."""

import argparse
import dataclasses
import shlex

from bench.config import rules
from bench.config.fields import PARTS, base_type, flag_of, variable_of
from bench.config.options import RunConfig, names
from bench.errors import UserError

ON_OFF = {"nargs": "?", "const": "1"}  # a switch, as argparse wants it: --quick, --quick=1, --quick=0


def parse_value(f: dataclasses.Field, text: str):
    """The value of an option as written by a person. Raises UserError when it is not of the option's type."""
    kind = base_type(f)
    if kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off", ""):
            return False
        raise UserError(f"{variable_of(f)}={text}: write 1 or 0")
    try:
        return kind(text)
    except ValueError:
        word = "whole number" if kind is int else "number"
        raise UserError(f"{variable_of(f)}={text} is not a {word}") from None


def add_arguments(parser: argparse.ArgumentParser, own: dict | None = None) -> None:
    """Give a parser one flag for each option, a group for each part. Values stay text until ``from_arguments`` reads
    them. own: option -> its default for this command."""
    own = own or {}
    groups = {part: parser.add_argument_group(f"{part}: {says}") for part, says in PARTS.items()}
    for f in dataclasses.fields(RunConfig):
        if f.metadata["within"]:
            continue
        choices = f"; one of {', '.join(f.metadata['choices'])}" if f.metadata["choices"] else ""
        value = own.get(f.name, f.default)
        default = f" [{value}]" if value is not None and value is not False else ""
        switch = ON_OFF if base_type(f) is bool else {}
        groups[f.metadata["part"]].add_argument(
            flag_of(f),
            dest=f.name,
            metavar=variable_of(f),
            default=str(own[f.name]) if f.name in own else None,
            help=f.metadata["help"] + choices + default,
            **switch,
        )


def from_arguments(args: argparse.Namespace) -> RunConfig:
    """Read the flags that were given. Raises UserError naming the first bad one."""
    given = {}
    for f in dataclasses.fields(RunConfig):
        text = getattr(args, f.name, None)
        if text is None:
            continue
        if f.name == "num_devices" and (ids := rules.parse_gpu_ids(text)):
            alone = "," if len(ids) == 1 and ids[0].isdecimal() else ""  # which one, and not how many
            given |= {"num_devices": len(ids), "gpu_ids": ",".join(ids) + alone}
        else:
            given[f.name] = parse_value(f, text)
    return RunConfig(**given)


def in_words(f: dataclasses.Field, value) -> str:
    """An option with a value, as a person types it for make: ``GPUS=4``."""
    return f"{variable_of(f)}={int(value) if isinstance(value, bool) else value}"


def make_command(config: RunConfig) -> str:
    """The make command that repeats this run: only what differs from the defaults is named."""
    left_out = ("out", *names("labels"), *(["num_devices"] if config.gpu_ids else []))
    words = [
        f"{variable_of(f)}={shlex.quote(in_words(f, value).partition('=')[2])}"
        for f in dataclasses.fields(config)
        if (value := getattr(config, f.name)) != f.default and f.name not in left_out
    ]
    return " ".join(["make bench", *words])
