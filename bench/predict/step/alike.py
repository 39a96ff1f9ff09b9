"""Whether a run did the same work on the same devices as a profile, by the same engine as in a forecast."""

from collections.abc import Iterator

from bench.config.fields import variable_of
from bench.config.modes import MODES
from bench.config.options import FIELDS, RunConfig
from bench.predict.step.engines import CYCLE_MS
from bench.predict.step.profile import SAME_STEP
from bench.record.describe import of_environment, used_gpus
from bench.record.view import Record

DEFAULTS = {"cycle_time_ms": CYCLE_MS}  # of options that an engine fills in itself


def other_work(record: Record, own: Record) -> str:
    """In what a run's work or its devices differ from those of a profile's record; "" where in nothing."""
    return next(differences(record, own), "")


def differences(record: Record, own: Record) -> Iterator[str]:
    """Each."""
    for name in SAME_STEP:
        if (value := getattr(record.config, name)) != (wanted := getattr(own.config, name)):
            yield f"{variable_of(FIELDS[name])}={value}, and {wanted} in the profile"
    there, here = device_of(record), device_of(own)
    yield from (f"{name} {there[name]}, and {here[name]} in the profile" for name in here if there[name] != here[name])
    threads, wanted = record.samples[0].threads, own.samples[0].threads
    if not record.on_gpu and threads != wanted:
        yield f"{threads} threads per process, and {wanted} in the profile"


def device_of(record: Record) -> dict[str, str]:
    """What computes, however many of it there are."""
    known = of_environment(record.environment)
    gpus = " and ".join(sorted(set(used_gpus(record)))) or "none"
    return {"processor": known["processor"], "GPU": gpus, "torch": known["torch"]}


def other_engine(config: RunConfig, forecast: RunConfig, dilate: float = 1.0) -> str:
    """The first of the mode's own options that has another value than in a forecast; "" where none has. dilate: by how
    much an emulation has slowed Horovod's cycle."""
    for name in MODES[config.mode].knobs:
        value, wanted = (getattr(each, name) or DEFAULTS.get(name, getattr(each, name)) for each in (config, forecast))
        value = value / dilate if name == "cycle_time_ms" else value
        if value != wanted:
            return f"{config.mode} with {variable_of(FIELDS[name])}={value}"
    return ""
