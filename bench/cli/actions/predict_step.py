"""`bench predict step RECORD`: step time of each mode on more devices, from a profile of one; with OUT its pictures."""

import argparse
import dataclasses
from pathlib import Path

from bench.analysis import drawing, tables
from bench.cli.base import require_argument
from bench.config.command_line import from_arguments
from bench.config.fields import variable_of
from bench.config.flags import parse_integer
from bench.config.modes import MODES
from bench.config.options import FIELDS, KNOBS, RunConfig
from bench.errors import UserError
from bench.predict.pictures import points as records
from bench.predict.pictures.figures import figures
from bench.predict.pictures.points import Asked, Points
from bench.predict.step import fit, result
from bench.predict.step import link as links
from bench.predict.step import profile as profiles
from bench.predict.step.engines import ENGINES
from bench.record import describe
from bench.record.disturbance import disturbed
from bench.record.view import Record

DEVICES = "2,4,8"
MOST_DEVICES = 100_000


def run(args) -> int:
    """Predict; print tables and assumptions. Nothing is started, and without OUT no file is written."""
    if args.points and not args.out:
        raise UserError("POINTS are drawn into a picture: give OUT=folder")
    asked, measured = read_inputs(args)
    points = points_of(args, asked).with_others(measured)
    found, steps, fits = forecasts(args, asked), len(asked.profile.factors), [*asked.fits.values()]
    console = tables.terminal()
    tables.print_lines(console, result.provenance_lines(asked.profile, asked.link))
    table, mfu = with_utilization(result.grid(found, asked.profile.unit), found, asked, args.network)
    grids = [table, *([result.explained(found)] if args.explain else []), *([fit.grid(fits)] if fits else [])]
    for grid in grids:
        tables.print_captioned(console, grid)
    limits = result.limits(steps, asked.link, bool(fits))
    for line in [*disturbed([asked.record, *measured.measured]), *limits, *mfu, *points.notes()]:
        console.print(f"note: {line}")
    if args.out:
        for path in drawing.save_all(figures(asked, found, points), Path(args.out).expanduser()):
            print(f"written: {path}", flush=True)
    return 0


def with_utilization(
    grid: tables.Grid, found: list[result.Forecast], asked: Asked, network: str | None
) -> tuple[tables.Grid, list[str]]:
    """With columns for TFLOP/s and MFU if the profile's record has the model's FLOPs, and what MFU is a share of: the
    peak of the record, by its option or a data sheet, else of the matrix products in NETWORK."""
    record = asked.record
    (peak, source), titles = describe.peak_tflops(record), tables.FLOPS
    if not peak and network:
        peak, source = links.measured_peak(network, asked.link.carrier, record.config)
        titles = titles | {"mfu": "MFU of the\nmeasured peak"}
        record = Record(record.data | {"config": record.data["config"] | {"peak_tflops": peak}}, record.folder)
    rows = [describe.utilization(record, each.throughput / each.ranks) for each in found]
    note = f"MFU is a share of {peak:.3g} TFLOP/s ({source})" if peak else source
    return tables.with_columns(grid, tables.flops_columns(rows, titles)), [note] if note and any(rows) else []


def read_inputs(args) -> tuple[Asked, Points]:
    """The inputs of a forecast, and the measured records among them, to which it is fitted. Raises UserError."""
    text = require_argument("RECORD", args.record)
    places = [] if Path(text).expanduser().exists() else [place.strip() for place in text.split(",") if place.strip()]
    first, *others = places or [text]
    record = profiles.record_at(first)
    profile = profiles.profile_of(record, first)
    asked = Asked(record, profile, link_of(args, profile), {mode: config_of(args, mode) for mode in modes_of(args)})
    if not others:
        return asked, Points()
    points = records.find(others, asked, "RECORD")
    measured = {each.config.mode for each in points.measured}
    if missing := [mode for mode in asked.configs if mode not in measured] if args.modes else not measured:
        what, rest = (f"MODES={missing[0]} has", "this mode") if args.modes else ("there is", "them")
        raise UserError(
            f"{what} no measured run in RECORD={','.join(others)}: name a record of such a run, or leave {rest} out"
        )
    return asked.fitted(points.measured), points


def forecasts(args, asked: Asked) -> list[result.Forecast]:
    counts = [parse_integer("DEVICES", text.strip(), 1) for text in (args.devices or DEVICES).split(",")]
    if max(counts) > MOST_DEVICES:
        raise UserError(f"DEVICES={max(counts)} is too large: at most {MOST_DEVICES}")
    return [asked.forecast(mode, ranks) for mode in asked.configs for ranks in counts]


def points_of(args, asked: Asked) -> Points:
    """The records of POINTS that fit the forecast. Raises UserError."""
    folders = [folder.strip() for folder in (args.points or "").split(",") if folder.strip()]
    return records.find(folders, asked) if args.points else Points()


def link_of(args, profile: profiles.Profile) -> links.Link:
    """LINK or NETWORK, and LINK_INSIDE if nodes have several devices. Raises UserError for what does not fit."""
    carrier = "gloo" if profile.device == "cpu" else "nccl"
    if bool(args.link) == bool(args.network):
        raise UserError("give LINK=RATE,LATENCY (as in LINK=10gbit,50us), or NETWORK=folder (the output folder of "
                        "`make network`)")  # fmt: skip
    link = links.parse_link(args.link, carrier) if args.link else links.measured(args.network, carrier)
    per_node = args.per_node or 1
    if (per_node > 1) != bool(args.link_inside):
        raise UserError("several devices per node need both PER_NODE and LINK_INSIDE, as in PER_NODE=8 "
                        "LINK_INSIDE=1200gbit,4us")  # fmt: skip
    if not args.link_inside:
        return link
    return link.with_inside(per_node, links.parse_link(args.link_inside, carrier, inside=True))


def modes_of(args) -> list[str]:
    """MODES, by default all that can be forecast. Raises UserError."""
    named = [name.strip() for name in args.modes.split(",")] if args.modes else list(ENGINES)
    if unknown := [name for name in named if name not in ENGINES]:
        raise UserError(f"MODES={unknown[0]} cannot be forecast: choose from {', '.join(ENGINES)}")
    return list(dict.fromkeys(named))


def config_of(args, mode: str) -> RunConfig:
    """The given backend options of a mode. Raises UserError for one that no forecast uses, or that none of the modes
    has."""
    modes, values = modes_of(args), dict(vars(args))
    for name, f in FIELDS.items():
        if values.get(name) is None:
            continue
        if name in KNOBS and not any(name in MODES[each].knobs for each in modes):
            raise UserError(f"{variable_of(f)} does not apply to {' or '.join(modes)}: leave it out")
        if name in KNOBS and name not in MODES[mode].knobs:
            values[name] = None
    return dataclasses.replace(from_arguments(argparse.Namespace(**values | {"mode": mode})), num_devices=2)
