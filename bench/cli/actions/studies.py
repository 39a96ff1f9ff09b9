"""The commands of the studies: run the suites in rounds, then certificate, verdict, pictures and a page."""

from pathlib import Path

from rich.console import Console

from bench.analysis import tables, words
from bench.analysis.stats import FEWEST_ROUNDS
from bench.analysis.suite import Suite, suite_of
from bench.cli.actions.batch_search import take_max, with_largest_batch
from bench.config.command_line import from_arguments
from bench.config.options import RunConfig
from bench.errors import UserError
from bench.record.describe import cautions, oom_notes
from bench.record.disturbance import worst
from bench.record.read import find_records
from bench.studies.base import LOOKS, MAX_MINUTES, QUICK_ROUNDS, Flags, Plan, Study
from bench.studies.registry import STUDIES, study_of
from bench.studies.rounds import Sequence, labelled, repeats_of, run_rounds


def run(study: Study, args) -> int:
    """Run every suite of a study's command, and print the results."""
    find_batch = take_max(args)
    flags, asked, console = flags_of(study, args), study.read(args), tables.terminal()
    if find_batch:
        if study.seeded or study.read is not from_arguments:
            raise UserError(f"BATCH=max does not work with `bench {study.command}`: give a number")
        asked = with_largest_batch(console, asked, lambda asked: {
            name: config for plan in study.plans(Console(quiet=True), asked, flags)
            for name, config in plan.programs.items()
        })  # fmt: skip
    folders = [run_plan(console, plan, flags, args.out or RunConfig.out) for plan in study.plans(console, asked, flags)]
    return finish(console, folders, flags.strict)


def flags_of(study: Study, args) -> Flags:
    """The command's own flags. Raises UserError for flags that exclude each other."""
    rounds, minutes = args.seeds if study.seeded else args.rounds, getattr(args, "max_minutes", None)
    auto = rounds == "auto"
    if auto and not study.auto:
        able = " and ".join(dict.fromkeys(each.command for each in STUDIES.values() if each.auto))
        raise UserError(f"ROUNDS=auto works only with {able}: give a number")
    if auto and args.quick:
        raise UserError("ROUNDS=auto and QUICK=1 exclude each other: leave one of them out")
    if minutes is not None and not auto:
        raise UserError("MAX_MINUTES applies only to ROUNDS=auto: add ROUNDS=auto, or leave MAX_MINUTES out")
    own = {name: value for name in ("quick", "strict", "replay", "max_gpus", "name", "modes")
           if (value := getattr(args, name, None)) is not None}  # fmt: skip
    return Flags(None if auto else rounds, (minutes or MAX_MINUTES) if auto else None, **own)


def run_plan(console, plan: Plan, flags: Flags, out: str) -> Path:
    """Run one suite; returns its folder. With STRICT=1 it stops after the first round if something differs."""
    rounds = flags.rounds or (QUICK_ROUNDS if flags.quick else plan.study.rounds)
    if rounds < FEWEST_ROUNDS:
        console.print(
            f"preview: fewer than {FEWEST_ROUNDS} rounds give no interval, no verdict and no recommendation",
            style="bold",
        )

    def judge(records):
        return plan.study.result(suite_of(records[0].label.suite, records))

    sequence, said = None, f"{rounds} rounds"
    if flags.minutes:
        plan, rounds = labelled(plan, flags.minutes), LOOKS[-1]
        sequence = Sequence(judge, flags.minutes, console.print)
        said = words.sequence(list(LOOKS), flags.minutes)
    if repeats_of(plan, rounds):
        said += f"; up to {repeats_of(plan, rounds)} disturbed rounds are repeated"
    console.print(f"{plan.study.name}: {len(plan.programs)} configurations, {said}")

    def after_round(done: int, records) -> bool:
        if flags.strict and done == 1:
            refuse_unfair(console, judge(records), records[0].config.out)
        if sequence and worst(records):
            console.print(f"round {done} stays disturbed: no verdict is possible, so the suite stops here")
            return True
        return bool(sequence and sequence.enough(done, records))

    return run_rounds(console, plan, rounds, out, after_round, sequence.has_time if sequence else None)


def refuse_unfair(console, result, folder) -> None:
    """STRICT=1: raise UserError, after the certificate, when something differed."""
    if not result.certificate.fair:
        tables.print_certificate(console, result.certificate)
        raise UserError(f"STRICT=1: {result.certificate.sentence()}; the records are in {folder}")


def finish(console, folders: list[Path], strict: bool = False) -> int:
    """Certificate, table, verdict; pictures and a page. Its path is the last line. strict: raise UserError if
    unfair."""
    from bench.analysis import drawing
    from bench.report import page

    found, refused = [], []
    for folder in folders:
        records, bad = find_records(folder)
        suite = suite_of(folder.name, records)
        study = study_of(suite)
        result = study.result(suite)
        if strict:
            refuse_unfair(console, result, folder)
        print_result(console, study, suite, result)
        drawing.save_all(study.figures(result), folder)
        found.append(suite)
        refused += bad
    path = page.write_page(found, [], refused, folders[0] / "report.html")
    for folder in folders:
        print(f"records and pictures: {folder}")
    print(f"report: {path}", flush=True)
    return 0


def print_result(console, study: Study, suite: Suite, result) -> None:
    console.print(suite.machine, style="bold")
    tables.print_certificate(console, result.certificate)
    grey = suite.disturbed or suite.n < FEWEST_ROUNDS
    if suite.disturbed:
        console.print(f"DISTURBED: {suite.disturbance}. No verdict and no recommendation: repeat it on an idle machine")
    elif grey:
        console.print(f"preview: n = {suite.n}, no interval, no verdict and no recommendation")
    for grid in study.summary(result):
        tables.print_grid(console, grid, style="dim" if grey else "")
    for said in (getattr(result, name, str)() for name in ("holm_summary", "rounds_needed")):
        if said:
            console.print(said)
    for label, rounds in getattr(result, "outliers", {}).items():
        console.print(f"outlier (kept): {label}, round {', '.join(str(n + 1) for n in rounds)}")
    for record in suite.left_out:
        console.print(f"not counted: {record.run_id}, from a repeated or incomplete round")
    for line in [*oom_notes(suite.failed, suite.records), *cautions(suite.records)]:
        tables.print_named(console, "warning", line)
    for line in [*study.answer(result), *(f"{name}: {text}" for name, text in study.explanations(suite))]:
        console.print(line, style="dim" if grey else None)
