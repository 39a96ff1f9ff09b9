"""An option more than the table has, as a line in a section would add it."""

import dataclasses

from bench.config import options
from bench.config.fields import option
from bench.config.options import RunConfig


def add_option(monkeypatch, section: type, *modules) -> None:
    """``made_up`` in a section. modules: those that have imported RunConfig, SECTIONS, WORK or PROGRAM by name."""
    more = dataclasses.make_dataclass(
        section.__name__, [("made_up", int, option(0, "an option that nobody has thought of"))], bases=(section,),
        frozen=True,
    )  # fmt: skip
    config = dataclasses.make_dataclass("More", [("made_up", int, option(0, "…"))], bases=(RunConfig,), frozen=True)
    (field,) = (f for f in dataclasses.fields(more) if f.name == "made_up")
    monkeypatch.setitem(options.FIELDS, "made_up", field)
    monkeypatch.setitem(options.UNSET, "made_up", 0)
    for module in (options, *modules):
        for name in {"SECTIONS", "WORK", "PROGRAM"} & vars(module).keys():
            sections = tuple(more if each is section else each for each in getattr(module, name))
            monkeypatch.setattr(module, name, sections)
        if hasattr(module, "RunConfig"):
            monkeypatch.setattr(module, "RunConfig", config)
