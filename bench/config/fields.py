"""What an option is: a field of a section with its help, choices and range. The command line, the Makefile's variables,
the checks, the keys by which records are compared and the manual are all made from this metadata."""

import dataclasses
from dataclasses import field

from bench.errors import UserError

LARGEST, LARGEST_WHOLE = 1e100, 2**53  # limit for tables, figures and sums; a diverged loss is far below
LONGEST = 10_000  # characters of a given value


def option(
    default, help="", flag=None, choices=None, minimum=None, exclusive_minimum=None, maximum=None, path=False,
    trains=False, within=None, plain=None, variable=None, advanced=False,
    form="{}",
):  # fmt: skip
    """A field of a section. None is always allowed.

    flag: its name for users, if different from the field's. path: its value is a path on this machine. trains: it
    applies only to training by epochs. within: the option in whose value it is given, if it is not an option itself.
    plain: of an option that depends on the GPU, its value on a CPU and with TORCH_DEFAULTS=1. variable: environment
    variable used if the option is not given. advanced: listed by --help-all only. form: its form as part of another
    option's value; of a switch, the word that sets it.
    """
    meta = {"help": help, "flag": flag, "choices": choices, "min": minimum, "above": exclusive_minimum}
    meta |= {"max": maximum, "path": path, "trains": trains, "within": within, "plain": plain, "variable": variable}
    meta |= {"advanced": advanced, "form": form}
    return field(default=default, metadata=meta)


def flag_of(f: dataclasses.Field) -> str:
    return "--" + (f.metadata["flag"] or f.name).replace("_", "-")


def variable_of(f: dataclasses.Field) -> str:
    return (f.metadata["flag"] or f.name).upper()


def option_value(value) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def in_words(f: dataclasses.Field, value) -> str:
    """An option with its value in make's form: ``GPUS=4``."""
    form = f.metadata["form"]
    if isinstance(value, bool) and form != "{}":
        return f"{variable_of(f)}={form}" if value != f.default else f"no {variable_of(f)}={form}"
    return f"{variable_of(f)}={form.format(int(value) if isinstance(value, bool) else value)}"


def base_type(f: dataclasses.Field) -> type:
    return next(t for t in (bool, int, float, str) if t is f.type or t in getattr(f.type, "__args__", ()))


def check_value(f: dataclasses.Field, value) -> None:
    if value is None or value is f.default:
        return
    meta, name = f.metadata, variable_of(f)
    if meta["choices"] and value not in meta["choices"]:
        raise UserError(f"unknown {name}={value}: choose one of {', '.join(meta['choices'])}")
    if meta["min"] is not None and not value >= meta["min"]:
        raise UserError(f"{name}={value} is too small: at least {meta['min']}")
    if meta["above"] is not None and not value > meta["above"]:
        raise UserError(f"{name}={value} must be above {meta['above']}")
    if meta["max"] is not None and value > meta["max"]:
        raise UserError(f"{name}={value} is too large: at most {meta['max']}")
    if (isinstance(value, float) and value != value) or value in (float("inf"), float("-inf")):
        raise UserError(f"{name}={value} is not a finite number")
    most = LARGEST if isinstance(value, float) else LARGEST_WHOLE
    if isinstance(value, int | float) and abs(value) > most:
        raise UserError(f"{name}={value} is too large for a record: at most {most}")
    if isinstance(value, str):
        if len(value) > LONGEST:
            raise UserError(f"{name} has {len(value)} characters, but a record stores at most {LONGEST}: shorten it")
        if not is_unicode(value):
            raise UserError(
                f"{name}={value} is not valid UTF-8 and cannot be stored in a record: choose a value in UTF-8"
            )


def is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def fits(f: dataclasses.Field, value) -> bool:
    """Whether a value has an option's type; a whole number is also a number."""
    if value is None:
        return "None" in str(f.type)
    kind = base_type(f)
    return isinstance(value, (int, float) if kind is float else kind) and (kind is bool) == (type(value) is bool)


def in_range(f: dataclasses.Field, value) -> bool:
    """Whether a number is in its option's range; always true for a text."""
    if isinstance(value, int | float):
        try:
            check_value(f, value)
        except UserError:
            return False
    return True
