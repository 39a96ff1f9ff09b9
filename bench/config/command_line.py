"""Flags and make variables to a RunConfig, and back to the command that repeats a run."""

import argparse
import dataclasses
import functools
import os
import shlex
from pathlib import Path

from bench.config import hosts, rules
from bench.config.combined import READ, TEXT, is_part, words_of
from bench.config.data_sets import DATA_SETS, OWN, data_kind
from bench.config.fields import base_type, check_value, flag_of, in_words, variable_of
from bench.config.modes import MODES
from bench.config.options import FIELDS, KNOBS, SECTIONS, RunConfig, names, when_not_given
from bench.errors import UserError

ON_OFF = {"nargs": "?", "const": "1"}  # a switch, as argparse wants it: --quick, --quick=1, --quick=0
WITH_COMMAS = ("hosts", "freeze", "mistake", "schedule", "snapshots")  # a list of such values has semicolons
OF_IMAGES = ("model", "data", "image_size", "augment", "target")  # a command's own defaults of these apply to images


class Default(str):
    """A command's own default of an option, not given by the user."""


def given_options(args) -> dict[str, str]:
    """Option -> its text, for options given by the user; without a command's own defaults."""
    values = {name: getattr(args, name, None) for name in FIELDS}
    return {name: value for name, value in values.items() if value is not None and not isinstance(value, Default)}


def parse_value(f: dataclasses.Field, text: str):
    """The value of an option. Raises UserError if the text does not have the option's type."""
    kind = base_type(f)
    if kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off", ""):
            return False
        within = [each.metadata["choices"] or (each.metadata["form"],) for each in FIELDS.values()
                  if each.metadata["within"] == f.name]  # fmt: skip
        raise UserError(f"{variable_of(f)}={text}: write {', '.join(['1', *sum(within, ())])} or 0")
    try:
        return kind(text)
    except ValueError:
        word = "whole number" if kind is int else "number"
        raise UserError(f"{variable_of(f)}={text} is not a {word}") from None


def read_option(f: dataclasses.Field, text: str) -> dict:
    """The fields that an option's text sets. Raises UserError for a value that no run can have."""
    parts = (READ[f.name](text) if f.name in READ else {}) or {f.name: parse_value(f, text)}
    for name, value in parts.items():
        check_value(FIELDS[name], value)
    return parts


def separator(f: dataclasses.Field) -> str:
    return ";" if f.metadata["path"] or f.name in WITH_COMMAS else ","


def listed(f: dataclasses.Field, text: str) -> list[str]:
    """The values of an option given as a list, for `bench sweep`.

    >>> listed(FIELDS["per_device_batch"], "32, 64"), listed(FIELDS["schedule"], "cosine;step:30,60")
    (['32', '64'], ['cosine', 'step:30,60'])
    """
    values = list(dict.fromkeys(value.strip() for value in text.split(separator(f))))
    if f.name != "num_devices" or not all(value.isdecimal() for value in values):  # GPU-3f2a,GPU-77b0 are one value
        return values if f.name != "num_devices" else [text]
    if len(values) > 1 and "0" in values:
        raise UserError(f"GPUS={text}: a sweep takes numbers of devices: choose GPUs by CUDA_VISIBLE_DEVICES={text}")
    return values


def add_arguments(
    parser: argparse.ArgumentParser,
    own: dict | None = None,
    others: dict | None = None,
    takes: tuple[str, ...] = (),
    knobs: bool = False,
) -> None:
    """Give a parser one flag for each option, a group for each section. Values stay text until ``from_arguments`` reads
    them. own: option -> its default for this command. others: workload -> the same if it is trained. takes: only these
    options, with knobs also mode-specific ones; empty: all."""
    own = own or {}
    parser.set_defaults(other_defaults=others or {})
    for section in SECTIONS:
        group = parser.add_argument_group(section.__doc__.rstrip("."))
        for f in (FIELDS[name] for name in names(section)):
            if f.metadata["within"] or (takes and f.name not in takes and not (knobs and f.name in KNOBS)):
                continue
            listed = f.metadata["choices"] if f.name != "mistake" else ()
            choices = f": {', '.join(listed)}" if listed else ""
            value = own.get(f.name, f.default)
            default = f" [{int(value) if value is True else value}]" if value is not None and value is not False else ""
            switch = ON_OFF if base_type(f) is bool else {}
            given = Default(own[f.name]) if f.name in own else None
            action = group.add_argument(flag_of(f), default=given, dest=f.name, metavar=variable_of(f),
                                        help=f.metadata["help"] + choices + default, **switch)  # fmt: skip
            action.advanced = f.metadata["advanced"] and f.name not in (*takes, *own)
            action.modes = [mode for mode, info in MODES.items() if f.name in info.knobs]


def from_arguments(args: argparse.Namespace) -> RunConfig:
    set_workload_defaults(args)
    given, found = {}, with_hosts(args)
    if found["per_device_batch"] == "max":
        raise UserError("BATCH=max is for `bench run` and comparisons of speed, which try batches in short runs: give "
                        "a number, or leave it out (`bench predict memory` prints the largest that fits)")  # fmt: skip
    for f in FIELDS.values():
        if (text := found[f.name]) is None:
            continue
        given |= read_option(f, text)
    config, file = RunConfig(**given), getattr(args, "config", None)
    return config.labelled(config_file=Path(file).name) if file else config


def set_workload_defaults(args: argparse.Namespace) -> None:
    """For examples that are not images, replace a command's own defaults by those of the workload."""
    model, data = (value if not isinstance(value := getattr(args, name, None), Default) else None
                   for name in ("model", "data"))  # fmt: skip
    kind = data_kind(data)[0] if data else None
    workload = "text" if model == rules.GPT or (kind in DATA_SETS and DATA_SETS[kind].workload == "text") else ""
    workload = "own" if kind == OWN else workload
    if not workload:
        return
    for name in OF_IMAGES:
        if isinstance(getattr(args, name, None), Default):
            setattr(args, name, None)
    for name, value in getattr(args, "other_defaults", {}).get(workload, {}).items():
        if getattr(args, name, None) is None or isinstance(getattr(args, name), Default):
            setattr(args, name, Default(value))


def with_hosts(args: argparse.Namespace) -> dict[str, str | None]:
    """Option -> its text, with the environment's settings for several machines. GPUS defaults to all devices of HOSTS
    that the mode can use."""
    found = {}
    for f in FIELDS.values():
        found[f.name] = getattr(args, f.name, None)
        if found[f.name] is None and f.metadata["variable"] and (f.name == "hosts" or found["hosts"]):
            found[f.name] = os.environ.get(f.metadata["variable"]) or None
    if found["hosts"]:
        if found["hosts"] == hosts.SLURM and not found["remote"]:
            found["remote"] = hosts.SRUN
        found["hosts"] = hosts.written_out(found["hosts"], os.environ)
        info = MODES.get(found["mode"] or RunConfig.mode)
        if info and isinstance(found["num_devices"], Default | None):
            machines = hosts.parse(found["hosts"])
            devices = machines[0].slots if info.one_process else sum(host.slots for host in machines)
            found["num_devices"] = str(min(devices, info.max_devices or devices))
    return found


def make_command(config: RunConfig) -> str:
    found = [given_words(config, f) for f in dataclasses.fields(config)
             if f.name not in ("out", "label") and not is_part(f)]  # fmt: skip
    pairs = [words.partition("=") for words in found if words]
    return " ".join(["make bench", *(f"{name}={shlex.quote(text)}" for name, _, text in pairs)])


def given_words(config: RunConfig, f: dataclasses.Field) -> str | None:
    """A resolved config's option in make's form; None if not given."""
    value = getattr(config, f.name)
    if f.name in TEXT:
        return words_of(f.name, functools.partial(getattr, config))
    if value in (None, when_not_given(config, f)) or (f.name == "num_devices" and config.gpu_ids):
        return None
    return in_words(f, value)
