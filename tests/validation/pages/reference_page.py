"""The README of a folder of committed records: what each suite found, made from its records and from nothing else."""

import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path

from bench.analysis import words
from bench.analysis.style import provenance_lines
from bench.analysis.suite import Suite, suites_and_others
from bench.analysis.tables import programs_grid
from bench.errors import UserError
from bench.files import PROJECT
from bench.measure.environment import cores_in_words
from bench.record.describe import cautions_of_single_runs, memory_cell
from bench.record.disturbance import undisturbed
from bench.record.read import find_records
from bench.record.view import Record
from bench.report import markdown
from bench.report.page import commands_of, newest_first, place_of, runs_grid, subject
from bench.studies.registry import study_of
from bench.tasks.network import record as network_record
from bench.tasks.network import result as network_result

NO_REFERENCE = "disturbed: not a reference"
MADE = "Made from the records in this folder by `python -m tests.validation.renew`; do not edit it.\n"
NOTES = "NOTES.md"  # next to the records, by hand: who ran them, when, and what else is to be known of them


@functools.cache
def read(folder: Path) -> tuple[list[Suite], list[Record]]:
    """The suites of a folder in the order of the page, and the records of none."""
    records, refused = find_records(folder)
    if refused:
        raise UserError(f"{folder} contains files that are not valid records: {refused[0]}")
    suites, alone = suites_and_others(records)
    return sorted(suites, key=lambda suite: (place_of(subject(suite)), suite.id)), alone


def page(folder: Path) -> str:
    """The page. Raises UserError when a file is not a valid record."""
    suites, alone = read(folder)
    notes = folder / NOTES
    head = [f"# {folder.name}\n", MADE]
    if notes.exists():
        head.append(notes.read_text())
    parts = [*head, *(section(folder, suite) for suite in suites), *networks(folder), *overhead(folder)]
    if alone:
        good = newest_first([record for record in alone if record.ok])
        grid, commands = runs_grid(good), "\n".join(f"{run}: {command}" for run, command in commands_of(good))
        parts.append(f"## Single runs\n\n{grid.caption}.\n\n{markdown.grid(grid)}\n\n```\n{commands}\n```\n")
        parts += [f"![{record.run_id}: {path.stem}]({path.relative_to(folder)})\n"
                  for record in good for path in pictures(Path(record.folder))]  # fmt: skip
    return "\n".join(parts)


def section(folder: Path, suite: Suite) -> str:
    study = study_of(suite)
    quiet, said = undisturbed(suite.records)
    apart = "" if quiet else f" ({NO_REFERENCE})"
    over = f": {suite.first.network}" if suite.first.network else ""
    lines = [f"## {study.heading_of(suite)}{over}{apart}\n", f"*{study.question_of(suite)}*\n"]
    place = suite.folder.name
    try:
        result = study.result(suite)
    except UserError as error:
        return "\n".join([*lines, f"Refused: {error}\n"])
    lines += [f"- {answer}" for answer in study.answer(result)]
    lines += ["", f"{'; '.join(provenance_lines(suite))}. [Records]({place}/). `{study.repeat(suite)}`", ""]
    lines.append(f"{said if quiet else f'**{said}**'}\n")
    lines.append(f"Parity certificate: {result.certificate.sentence()}.\n")
    for grid in study.grids(result):
        lines += [f"{grid.caption}:\n", markdown.grid(grid)]
    lines += [f"![{path.stem}]({path.relative_to(folder)})" for path in pictures(folder / place)]
    return "\n".join(lines) + "\n"


def networks(folder: Path) -> Iterator[str]:
    records, refused = network_record.find(folder)
    if refused:
        raise UserError(f"{folder} contains files that are not valid records: {refused[0]}")
    for name, found in network_record.by_suite(records).items():
        place, (quiet, said) = network_record.place_of(found), undisturbed(found)
        standing = network_result.provenance_lines(found)
        lines = [f"## Network: {standing[0]}{'' if quiet else f' ({NO_REFERENCE})'}\n"]
        lines += [f"- {line}" for line in network_result.answer(found)]
        lines += ["", f"{'; '.join(standing)}. [Records]({place.name}/). `{network_result.repeat(found)}`", ""]
        lines.append(f"{said if quiet else f'**{said}**'}\n")
        for grid in network_result.grids(found):
            lines += [f"{grid.caption}:\n", markdown.grid(grid)]
        lines += [f"![{name}: {path.stem}]({path.relative_to(folder)})" for path in pictures(place)]
        yield "\n".join(lines) + "\n"


def pictures(folder: Path) -> list[Path]:
    return sorted((folder / "pictures").glob("*.svg"))


def overhead(folder: Path) -> Iterator[str]:
    """What the harness costs: each file of `python -m tests.validation.overhead`, which was `bench selfbench`."""
    for path in sorted([*folder.glob("selfbench-*.json"), *folder.glob("overhead-*.json")]):
        report = json.loads(path.read_text())
        facts, versions = report["environment"]["machine"], report["environment"]["versions"]
        rows = []
        for row in report["rows"]:
            target = "" if row["target"] is None else f"{'≤' if row['at_most'] else '≥'} {row['target']:g}"
            ratio = words.with_span(row["ratio"], row["low"], row["high"])
            rows.append([row["name"], ratio, target, row["verdict"], str(row["n"])])
        head = [("what", False), ("ratio [95 % interval]", True), ("target", True), ("verdict", False), ("n", True)]
        machine = f"{facts['cpu_model']}, {cores_in_words(facts['usable_cores'])}; torch {versions['torch']}"
        where = f"{machine}; [{path.name}]({path.name})"
        yield f"## What the harness costs ({report['started_at'][:16]})\n\n{where}.\n\n{markdown.table(head, rows)}"


# --- for the README of the project ---------------------------------------------------------------------------------


def claim(folder: Path, study: str, picture: str) -> str:
    """The newest suite of a study as a table (the fastest program, each other against it), one of its pictures, and
    where it was taken. Raises UserError where there is none that was not disturbed."""
    suites = [suite for suite in read(folder)[0] if is_claim(suite, study) and undisturbed(suite.records)[0]]
    if not suites:
        raise UserError(
            f"{folder} holds no {study} suite that was not disturbed: run `make {study}` on an idle machine"
        )
    suite = max(suites, key=lambda suite: suite.id)
    found = study_of(suite)
    result = found.result(suite)
    best, *others = result.ranking()
    said = {best: "fastest"} | {other: result.pair(other, best).sentence() for other in others}
    said |= {label: "no communication: not a way to train" for label in suite.programs if label not in said}
    numbers = {row[0]: [row[4], row[7].partition(" ")[2]] for row in programs_grid(suite, "").rows}
    source = memory_cell(suite.first.peak_memory).partition(" ")[0]
    rows = [[f"`{label}`", *numbers[label], text] for label, text in said.items()]
    head = [("mode", False), (f"{suite.units}/s", True), (f"peak memory ({source}), GiB per device", True),
            ("result", False)]  # fmt: skip
    path = os.path.relpath(suite.folder / "pictures" / f"{picture}.svg", PROJECT)
    image = f"![{found.heading}: {picture}]({path})"
    conditions = f"{'; '.join(provenance_lines(suite))}. `{found.repeat(suite)}`"
    fold = f"<details><summary>Machine, versions and command</summary>\n\n{conditions}\n\n</details>"
    return f"{markdown.table(head, rows)}\n{image}\n\n{fold}\n"


def finding(folder: Path, study: str, mode: str, picture: str) -> str:
    """For a page of the manual: what the newest suite of a study of trainings with this mode in it says, where it was
    taken, and one of its pictures. What is learnt does not depend on time, so a disturbed one counts, and that is said.
    Raises UserError where there is none."""
    suites = [suite for suite in read(folder)[0]
              if suite.study == study and mode in {record.config.mode for record in suite.records}]  # fmt: skip
    if not suites:
        raise UserError(f"{folder} holds no {study} suite with {mode}: run `make {study} MODES=single,{mode}`")
    suite = max(suites, key=lambda suite: suite.id)
    found, (quiet, said) = study_of(suite), undisturbed(suite.records)
    lines = [f"- {line}" for line in found.answer(found.result(suite))]
    lines += [] if quiet else [f"- {said} Their times are not used; the accuracy does not depend on them."]
    place = os.path.relpath(suite.folder, PROJECT / "tutorials" / "manual")
    lines += ["", f"{'; '.join(provenance_lines(suite))}. [Records]({place}/). `{found.repeat(suite)}`", ""]
    return "\n".join([*lines, f"![{found.heading}: {picture}]({place}/pictures/{picture}.svg)"]) + "\n"


def is_claim(suite: Suite, study: str) -> bool:
    """Whether a suite answers the study's general question: of all modes, and not over a network that is named."""
    return suite.study == study and not study_of(suite).about(suite) and not suite.first.network


def single_run(folder: Path) -> tuple[Record, list[Record]]:
    """A single run with its baselines: the first of the folder."""
    alone = [record for record in read(folder)[1] if record.ok and not record.network]
    for record in alone:
        others = [each for each in alone if Path(each.folder).parent == Path(record.folder) / "baselines"]
        if others and not cautions_of_single_runs(record, others):
            return record, others
    raise UserError(f"{folder} holds no single run with baselines")
