"""`bench predict mode`: which mode to use, from records or from a few short runs."""

import dataclasses
from pathlib import Path

from bench.analysis import tables
from bench.analysis.suite import suites_and_others
from bench.cli.actions.predict_memory import largest_here
from bench.cli.actions.studies import run_plan
from bench.cli.base import warn
from bench.config.command_line import from_arguments, given_options
from bench.config.fields import variable_of
from bench.config.modes import MODES, UPPER_BOUNDS
from bench.config.options import FIELDS, RunConfig
from bench.errors import RunFailed, UserError
from bench.launch.launcher import launch
from bench.launch.progress_bar import LiveProgress
from bench.predict.advice.answers import advise, provenance_lines
from bench.predict.advice.facts import ALONE, Facts
from bench.predict.step import link as links
from bench.record.read import find_records
from bench.report.advice import facts_of
from bench.studies.base import Flags
from bench.studies.compare.study import COMPARE
from bench.studies.programs import in_mode, prepare, refuse
from bench.tasks.network.record import find as find_networks

ROUNDS = 3


def run(args) -> int:
    """Print which mode to use, and why. The folder of the records is the last line."""
    console, asked = tables.terminal(), from_arguments(args)
    more = parse_facts(args)
    if args.records is not None:
        refuse_runs(args)
        folder, batches = Path(args.records).expanduser(), {}
    else:
        folder, batches = measured(console, asked, args)
    facts = read(folder)
    if link := link_of(args, facts):
        facts = dataclasses.replace(facts, link=link, fits={})
    facts = dataclasses.replace(facts, **more, **batches)
    show(console, facts)
    print(f"records: {folder}", flush=True)
    return 0


def show(console, facts: Facts) -> None:
    tables.print_lines(console, provenance_lines(facts))
    if facts.unfair:
        console.print(facts.unfair, style="bold")
    for answer in advise(facts):
        console.print(f"\n{answer.heading}", style="bold")
        for line in answer.lines:
            console.print(f"- {line}")


# --- what a person gives ----------------------------------------------------------------------------------------------


def parse_facts(args) -> dict:
    """PRICE, EXAMPLES and DEVICES as fields of ``Facts``. Raises UserError, also for a link that cannot be read."""
    link_of(args, None)
    if args.devices is not None and not (args.link or args.records):
        raise UserError(f"DEVICES={args.devices} needs a link, as in LINK=10gbit,50us")
    given = {"nodes": args.devices, "price": args.price, "examples": args.examples}
    return {name: value for name, value in given.items() if value is not None}


def link_of(args, facts: Facts | None) -> links.Link | None:
    """LINK; None without. Raises UserError."""
    on_gpu = facts and facts.profile and facts.profile.device == "cuda"
    return links.parse_link(args.link, "nccl" if on_gpu else "gloo") if args.link else None


def refuse_runs(args) -> None:
    """Raise UserError for an option that the records determine."""
    names = [variable_of(FIELDS[name]) for name in given_options(args)]
    names += [name.upper() for name in ("modes", "rounds") if getattr(args, name) is not None]
    if names:
        raise UserError(
            f"{names[0]} applies to new runs, but RECORDS={args.records} names existing ones: leave one of them out"
        )


# --- records, and runs of its own -------------------------------------------------------------------------------------


def read(folder: Path) -> Facts:
    """The facts of the records below a folder. Raises UserError if there are none."""
    records, refused = find_records(folder)
    networks, bad = find_networks(folder)
    for sentence in refused + bad:
        warn(f"refused: {sentence}")
    return facts_of(*suites_and_others(records), networks)


def measured(console, asked: RunConfig, args) -> tuple[Path, dict]:
    """A short comparison and a profile of one device: their folder, and the largest batches as fields of ``Facts``."""
    refuse(asked, "mode")
    if asked.num_devices == 1 and (args.modes or args.rounds):
        raise UserError("GPUS=1: MODES and ROUNDS apply to comparisons, which need GPUS=2 or more")
    if asked.num_devices > 1:
        (plan,) = COMPARE.plans(console, asked, Flags(modes=args.modes))
        config = max(plan.programs.values(), key=lambda each: each.num_devices)
        silent = {mode: in_mode(config, mode) for mode in UPPER_BOUNDS}
        plan = dataclasses.replace(
            plan, programs=plan.programs | silent
        )  # also on GPUs: it shows the exposed communication
        folder = run_plan(console, plan, Flags(rounds=args.rounds or ROUNDS), asked.out)
        programs = plan.programs
    else:
        config = prepare(console, dataclasses.replace(asked, mode=ALONE))
        folder, programs = None, {ALONE: config}
    batch = config.per_device_batch
    profile = in_mode(config, ALONE, per_device_batch=batch, profile=True, out=str(folder or asked.out))
    try:
        with LiveProgress(profile, console, "profile of one device") as watch:
            path = launch(profile, watch)
        folder = folder or path.parent
    except RunFailed as error:
        if not folder:
            raise
        warn(f"no profile of one device: {error}")
    return folder, batches_of(programs)


def batches_of(programs: dict[str, RunConfig]) -> dict:
    """The largest batch of each program that trains, as fields of ``Facts``; or why memory is unknown."""
    batches, said = {}, []
    for label, config in programs.items():
        if MODES[config.mode].baseline:
            continue
        try:
            fit = largest_here(config)
        except UserError as error:
            return {"batches_said": (str(error),)}
        batches[label] = fit.batch
        said += [f"largest: {fit.limit_text}, at most the data set", *fit.notes]
    return {"batches": batches, "batches_said": tuple(dict.fromkeys(filter(None, said)))}
