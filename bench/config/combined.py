"""Options whose value sets several fields of a config: SCHEDULE=step:30,60,80:0.1, LR_WARMUP=5e, INJECT=barrier.

``READ``: the field that has the option's name -> (its text) -> the fields that it sets. ``TEXT``: the same field ->
(the value of a field, by its name) -> the text, or None if not given.
"""

import re
from collections.abc import Callable

from bench import mistakes
from bench.config.fields import variable_of
from bench.config.options import FIELDS, UNSET
from bench.config.rules import PERIODIC
from bench.config.sections import COMPILE_MODES, OPTIMIZERS
from bench.config.values import FAULT_KINDS, parse_gpu_ids
from bench.errors import UserError

NESTEROV, EVERY, NOT = "nesterov", "every", "not:"
# INJECT's word -> the switch that it sets.
WORDS = {f.metadata["form"]: f for f in FIELDS.values() if f.metadata["within"] == "mistake" and f.type is bool}


def read_gpus(text: str) -> dict:
    if ids := parse_gpu_ids(text):
        alone = "," if len(ids) == 1 and ids[0].isdecimal() else ""  # an index, not a number
        return {"num_devices": len(ids), "gpu_ids": ",".join(ids) + alone}
    return {}


def read_compile(text: str) -> dict:
    return {"compile": True, "compile_mode": text} if text in COMPILE_MODES else {}


def read_profile(text: str) -> dict:
    return {"profile": True, "profile_kept": True} if text == "torch" else {}


def read_optimizer(text: str) -> dict:
    return {"optimizer": OPTIMIZERS[0], "nesterov": True} if text == NESTEROV else {}


def read_freeze(text: str) -> dict:
    return {"train_only": text.removeprefix(NOT)} if text.startswith(NOT) else {}


def read_warmup(text: str) -> dict:
    """
    >>> read_warmup("500"), read_warmup("0.5e")
    ({'lr_warmup_steps': 500}, {'lr_warmup_epochs': 0.5})
    """
    if re.fullmatch(r"\d{1,15}", text):
        return {"lr_warmup_steps": int(text)}
    if not re.fullmatch(r"(\d{1,15}(\.\d*)?|\.\d+)e", text):
        raise UserError(f"LR_WARMUP={text}: write steps, as in 500, or epochs, as in 5e")
    return {"lr_warmup_epochs": float(text[:-1])}


def read_schedule(text: str) -> dict:
    """
    >>> read_schedule("step:30,60:0.2"), read_schedule("cyclic:2:0.5")
    ({'schedule': 'step:30,60', 'schedule_factor': 0.2}, {'schedule': 'cyclic', 'schedule_epochs': 2.0, 'schedule_factor': 0.5})
    """  # noqa: E501
    name, *parts = text.split(":")
    if name not in PERIODIC or not parts:
        return {}
    epochs, found = parts[0], {"schedule": name}
    if name == "step" and not epochs.startswith(EVERY):
        found["schedule"] = f"{name}:{epochs}"
    else:
        found["schedule_epochs"] = part_of_schedule(text, epochs.removeprefix(EVERY if name == "step" else ""))
    if parts[1:]:
        found["schedule_factor"] = part_of_schedule(text, ":".join(parts[1:]))
    return found


def part_of_schedule(text: str, part: str) -> float:
    try:
        value = float(part)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UserError(f"SCHEDULE={text}: write step:30,60,80:0.1, step:{EVERY}30:0.1 or cyclic:30:0.1, all above 0")
    return value


def read_inject(text: str) -> dict:
    """
    >>> read_inject("barrier,gradient-sum,kill:1:3")
    {'step_barrier': True, 'mistake': 'gradient-sum', 'fault': 'kill:1:3'}
    """
    found = {}
    for word in text.split(","):
        if word in WORDS:
            name, value = WORDS[word].name, not WORDS[word].default
        elif word.partition(":")[0] in FAULT_KINDS:
            name, value = "fault", word
        elif word in ("none", *mistakes.INJECTED):
            name, value = "mistake", word
        else:
            known = ", ".join([*WORDS, *mistakes.INJECTED])
            raise UserError(f"unknown INJECT={word}: choose from {known}, or {'|'.join(FAULT_KINDS)}:RANK:STEP")
        if name in found:
            raise UserError(f"INJECT={text} has both {found[name]} and {word}: leave one of them out")
        found[name] = value
    return found


def text_of_schedule(get: Callable) -> str | None:
    name, epochs, factor = get("schedule"), get("schedule_epochs"), get("schedule_factor")
    given = [value != UNSET[key] for key, value in (("schedule_epochs", epochs), ("schedule_factor", factor))]
    if any(given) and ":" not in name:
        name += f":{EVERY if name == 'step' else ''}{epochs:g}"
    return name + (f":{factor:g}" if given[1] else "") if name != UNSET["schedule"] else None


def text_of_inject(get: Callable) -> str | None:
    words = [word for word, f in WORDS.items() if get(f.name) not in (f.default, None)]
    words += [value for name in ("mistake", "fault") if (value := get(name)) not in (None, UNSET[name])]
    return ",".join(words) or None


def text_of_warmup(get: Callable) -> str | None:
    return f"{get('lr_warmup_epochs'):g}e" if get("lr_warmup_epochs") else str(get("lr_warmup_steps") or "") or None


def text_of_optimizer(get: Callable) -> str | None:
    return NESTEROV if get("nesterov") else None if get("optimizer") == UNSET["optimizer"] else get("optimizer")


def text_of_compile(get: Callable) -> str | None:
    return get("compile_mode") or ("1" if get("compile") else None)


def text_of_profile(get: Callable) -> str | None:
    return "torch" if get("profile_kept") else "1" if get("profile") else None


def text_of_freeze(get: Callable) -> str | None:
    return f"{NOT}{get('train_only')}" if get("train_only") else get("freeze")


READ = {
    "num_devices": read_gpus, "compile": read_compile, "optimizer": read_optimizer, "freeze": read_freeze,
    "lr_warmup_steps": read_warmup, "schedule": read_schedule, "mistake": read_inject, "profile": read_profile,
}  # fmt: skip
TEXT = {
    "compile": text_of_compile, "optimizer": text_of_optimizer, "freeze": text_of_freeze,
    "lr_warmup_steps": text_of_warmup, "schedule": text_of_schedule, "mistake": text_of_inject,
    "profile": text_of_profile,
}  # fmt: skip
# Options of version 0.1 -> their replacements, until version 0.3.
RENAMED = {
    "schedule-epochs": "schedule=step:every30", "schedule-factor": "schedule=step:every30:0.1",
    "lr-warmup-steps": "lr-warmup=500", "lr-warmup-epochs": "lr-warmup=5e", "nesterov": "optimizer=nesterov",
    "train-only": "freeze=not:PATTERN", "sync": "inject=no-exchange", "init-sync": "inject=unsynced-init",
    "step-barrier": "inject=barrier", "item-sync": "inject=host-sync", "mistake": "inject=NAME",
    "fault": "inject=kill:RANK:STEP", "trust": "allow-pickle", "width": "embed-dim",
    "layers": "num-layers", "heads": "num-heads", "lr-batch": "lr-base-batch", "elastic": "min-devices",
    "reshard": "reshard-after-forward", "prefetch": "prefetch-blocks", "in-memory": "cache-images",
    "keep": "keep-checkpoints", "plain": "torch-defaults",
}  # fmt: skip


def is_part(f) -> bool:
    """Whether a field is given inside the value of another option."""
    return f.metadata["within"] in TEXT


def words_of(name: str, get: Callable) -> str | None:
    """A combined option in make's form: ``INJECT=barrier``; None if not given."""
    text = TEXT[name](get)
    return None if text is None else f"{variable_of(FIELDS[name])}={text}"
