"""RunConfig: the one description of a run. In the user's input ``None`` means: choose by device; ``resolve`` fills it
in, or raises a UserError with the option and a remedy. It imports no torch."""

import dataclasses
from dataclasses import dataclass, field

from bench.config import fields, rules, sections, tasks
from bench.config.fields import option
from bench.config.hosts import Host, parse, share
from bench.config.modes import MODES
from bench.config.sections import Data, Exchange, Label, Measuring, Model, Recipe
from bench.config.tasks import TASKS
from bench.errors import UserError

GRID = "grid"  # Label.variant of a cell of a sweep
KNOBS = {name for info in MODES.values() for name in info.knobs}  # options that only some modes have


@dataclass(frozen=True)
class Parallel:
    """Mode and devices."""

    mode: str = option("ddp", "data-parallel pattern, or the baseline independent", choices=tuple(MODES))
    num_devices: int = option(
        1, "number of GPUs, or all; without GPUs, of CPU processes. Or which GPUs, by number or UUID: 0,1 or "
        "GPU-3f2a,GPU-77b0; a single one as 3,", flag="gpus", minimum=1,
    )  # fmt: skip
    device: str = option("auto", "GPUs where there are any, or one kind", choices=sections.DEVICES)
    share_gpu: bool = option(False, "all ranks on one GPU: for learning, not for speed", advanced=True)


ENGINE = (sections.Ddp, sections.Horovod, sections.Fsdp, sections.Local, sections.Injected)
# In the order of help and manual.
SECTIONS = (Parallel, Model, Data, Recipe, sections.Launch, sections.Execution, Exchange, *ENGINE, Measuring,
            sections.Resources, sections.Files, sections.Extras)  # fmt: skip
WORK = (Model, Data, Recipe, Measuring)  # computation and measurement
PROGRAM = (Parallel, sections.Launch, sections.Execution, Exchange, *ENGINE)  # the program that computes it


@dataclass(frozen=True)
class RunConfig(*reversed(SECTIONS)):  # a dataclass takes the fields of its last base first
    label: Label = field(default=Label(), kw_only=True)

    def __post_init__(self):
        for section in (self, self.label):
            for f in dataclasses.fields(section):
                if f.name != "label":
                    fields.check_value(f, getattr(section, f.name))
        rules.check(self, KNOBS)

    def labelled(self, **changes) -> "RunConfig":
        return dataclasses.replace(self, label=dataclasses.replace(self.label, **changes))

    @property
    def global_batch(self) -> int:
        return self.per_device_batch * self.accumulate * self.num_devices

    @property
    def num_processes(self) -> int:
        """Processes that train: one per device, or only one for single and dp."""
        return 1 if MODES[self.mode].one_process else self.num_devices

    @property
    def machines(self) -> list[Host]:
        """The machines of HOSTS to use, each with its number of devices; empty without HOSTS."""
        return share(parse(self.hosts), self.num_devices) if self.hosts else []

    @property
    def task(self) -> str:
        return tasks.parse(self.label.probe)[0] if self.label.probe else tasks.TRAIN

    @property
    def leaves(self) -> str:
        return TASKS[self.task].leaves

    @property
    def threads_per_process(self) -> int:
        return max(1, self.threads // self.num_processes)


FIELDS = {f.name: f for f in dataclasses.fields(RunConfig) if f.name != "label"}
BY_NAME = {fields.variable_of(f).lower(): f for f in FIELDS.values() if not f.metadata["within"]}
LABELS = {f.name: f for f in dataclasses.fields(Label)}
# Default of every option; for those that depend on the GPU, the default on a CPU and with TORCH_DEFAULTS=1.
PLAIN = {name: f.metadata["plain"] for name, f in FIELDS.items() if f.metadata["plain"] is not None}
UNSET = {name: f.default for name, f in FIELDS.items()} | PLAIN


def when_not_given(config: RunConfig, f: dataclasses.Field):
    """The default value of an option of a resolved config; None if it depends on the GPU."""
    chosen = config.device == "cuda" and not config.plain
    return f.default if chosen else UNSET.get(f.name, f.default)


def names(*sections: type) -> list[str]:
    return [f.name for section in sections for f in dataclasses.fields(section)]


def of_training() -> list[str]:
    return [name for name, f in FIELDS.items() if f.metadata["trains"]]


def on_devices(config: RunConfig, num_devices: int, **changes) -> RunConfig:
    """A resolved config on another number of devices: each process keeps its threads and its loader workers."""
    share = {name: max(1, getattr(config, name) * num_devices // config.num_devices) for name in ("threads", "workers")
             if getattr(config, name)}  # fmt: skip
    return dataclasses.replace(config, num_devices=num_devices, **share | changes)


def to_dict(config: RunConfig) -> dict:
    """Its values, which are numbers and words: nothing is to be copied."""
    values = {**vars(config)}
    return values | vars(values.pop("label"))


def from_dict(values: dict) -> RunConfig:
    if unknown := values.keys() - FIELDS.keys() - LABELS.keys():
        raise UserError(f"unknown options in config: {', '.join(sorted(unknown))}")
    label = Label(**{name: value for name, value in values.items() if name in LABELS})
    return RunConfig(**{name: value for name, value in values.items() if name in FIELDS}, label=label)


def unchecked(values: dict) -> RunConfig:
    """A config from a record, without the checks before a launch: for reading only."""
    config = object.__new__(RunConfig)
    for name in FIELDS:
        object.__setattr__(config, name, values.get(name, UNSET[name]))
    object.__setattr__(config, "label", Label(**{name: values.get(name) for name in LABELS}))
    return config
