"""One self-contained HTML page of all records.

Of several suites of one subject (study, machine, network, number of devices) the newest complete one is shown in full,
or the newest with any rounds. The others get one line each."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench import files
from bench.analysis import drawing, style, tables
from bench.analysis.stats import FEWEST_ROUNDS
from bench.analysis.suite import Suite, by_suite
from bench.analysis.tables import Grid
from bench.errors import UserError
from bench.foreign import result as foreign_result
from bench.foreign import scaling
from bench.mistakes import MISTAKES
from bench.predict.advice.answers import of_measured
from bench.record import describe
from bench.record.disturbance import undisturbed
from bench.record.view import Record
from bench.report import pool_figure
from bench.report.advice import choose_suite, facts_of
from bench.report.pooling import machine_of
from bench.studies.compare.study import COMPARE
from bench.studies.registry import STUDIES, study_of
from bench.tasks.network import result as network_result
from bench.tasks.network.record import by_suite as networks_by_suite

FOLDED = ("What limits the step time",)  # answers of the recommendation that do not fit on the first screen
NAMES = {"n": "steps"}  # of columns, if the page is more explicit than the terminal


class Subject(NamedTuple):
    """The page shows one suite per subject."""

    study: str
    about: str  # which options, replay or mistake
    machine: str
    devices: int  # the most
    network: str


def write_page(
    suites: list[Suite], others: list[Record], refused: list[str], path: Path, networks: list = (), foreign: list = ()
) -> Path:
    """Write the page atomically and return its path. suites, networks, foreign (``NetworkRecord``, ``ForeignRecord``):
    oldest first. others: single runs, also failed ones. refused: a sentence for each file that is not a valid record.
    Raises OSError."""
    text = page(suites, others, refused, networks, foreign)
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def code_in_backticks(text: str):
    """HTML of a sentence, with commands as code.

    >>> code_in_backticks("run `make sweep` & <b>")
    Markup('run <code>make sweep</code> &amp; &lt;b&gt;')
    """
    from markupsafe import Markup, escape  # with jinja2: not for commands that only print

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def page(suites: list[Suite], others: list[Record], refused: list[str], networks: list = (), foreign: list = ()) -> str:
    import jinja2

    shown = {}
    for suite in suites:
        before = shown.get(subject(suite))
        if before is None or completeness(suite) >= completeness(before):
            shown[subject(suite)] = suite
    kept = [suite for suite in suites if suite is shown[subject(suite)]]
    advised, advice = advice_of(kept)
    order = sorted(shown, key=lambda key: (shown[key] is not advised, place_of(key)))
    twins = Counter(key[:2] for key in order)
    sections = [(study_of(shown[key]), section(shown[key], twins[key[:2]] > 1)) for key in order]
    if advised and not sections[0][1]["refusal"]:
        first = sections[0][1]
        first["advice"] = advice
        if not advice["withheld"]:  # the figure states each pair next to it
            first["answers"] = [line for line in first["answers"] if line not in first["drawn"]]
    lines = [line_of(suite) for suite in reversed(suites) if suite not in kept]
    measured = {name: (found, network_result.provenance_lines(found)[0])
                for name, found in networks_by_suite(networks).items()}  # fmt: skip
    newest = {(provenance, describe.machine_line(found[0])): found for found, provenance in measured.values()}
    lines += [f"{name}: messages; {provenance}; n = {found[0].plan.rounds}"
              for name, (found, provenance) in measured.items() if found not in newest.values()]  # fmt: skip
    lines += [f"{name}: no complete round; {sum(record.ok for record in found)} of {len(found)} runs succeeded"
              for name, found in by_suite(newest_first(others)).items()]  # fmt: skip
    failed = [record for record in others if record.failure] + [record for suite in suites for record in suite.failed]
    runs = [record for record in others if record.ok]
    warnings = []
    for record in runs:
        mistake = record.config.mistake
        said = ("" if mistake == "none" else MISTAKES[mistake].warning, describe.interrupted(record))
        warnings += [f"{record.run_id}: {sentence}" for sentence in said if sentence]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["code"] = code_in_backticks
    return environment.get_template("page.html.j2").render(
        sections=[found for study, found in sections if not study.card],
        networks=[network_section(found) for found in newest.values()],
        foreign=foreign_section(foreign) if foreign else None,
        cards=[found for study, found in sections if study.card],
        card_study=next(study for study in STUDIES.values() if study.card),
        warnings=warnings,
        more=lines,
        runs=runs_section(runs),
        failed=failed_grid([record for record in failed if not record.failed_on_purpose]),
        refused=refused,
    )


def advice_of(suites: list[Suite]) -> tuple[Suite | None, dict | None]:
    """The first comparison on the page, and its recommendation; None, None without one."""
    if not any(suite.study == COMPARE.name and suite.n for suite in suites):
        return None, None
    try:
        facts = facts_of(suites, [])
    except UserError:  # the suite's own section shows the reason
        return None, None
    first = [answer for answer in of_measured(facts) if answer.heading not in FOLDED]
    return choose_suite(suites), {
        "withheld": facts.withheld,
        "lines": [line for answer in first for line in answer.lines],
        "folded": [answer for answer in of_measured(facts) if answer.heading in FOLDED],
    }


def place_of(key: Subject) -> tuple:
    """Sort key: studies and their questions in the registry's order; unknown studies last."""
    if key.study not in STUDIES:
        return len(STUDIES), 0, key
    questions = list(STUDIES[key.study].questions)
    return list(STUDIES).index(key.study), questions.index(key.about) if key.about in questions else -1, key


def subject(suite: Suite) -> Subject:
    devices = max(record.config.num_devices for record in suite.records)
    machine = machine_of(suite.first)
    return Subject(suite.study, study_of(suite).about(suite), machine.hardware, devices, machine.network)


def completeness(suite: Suite) -> int:
    """3: a suite with all planned rounds (a sequential one: those of its first interim analysis), 2: enough for an
    interval, 1: fewer, or disturbed, 0: none."""
    enough = suite.looks[0] if suite.looks else study_of(suite).enough
    if suite.n < min(enough, FEWEST_ROUNDS) or suite.disturbed:
        return min(1, suite.n)
    return 3 if suite.n >= enough else 2


def section(suite: Suite, twin: bool = False) -> dict:
    """The template's data of one suite, or the reason why it cannot be compared ("refusal"). twin: the page has another
    suite of the same study, on another machine or number of devices, so the heading names them."""
    study, where = study_of(suite), ""
    if twin:
        about, worker = subject(suite), "GPU" if suite.device == "cuda" else "CPU worker"
        network = f", {about.network}" if about.network else ""
        where = f" ({pool_figure.plural(about.devices, worker)}, {about.machine}{network})"
    found = {
        "id": suite.id,
        "heading": study.heading_of(suite) + where,
        "question": study.question_of(suite),
        "warning": study.warning(suite),
        "said": study.explanations(suite),
        "standing": style.provenance_lines(suite),
        "disturbance": suite.disturbance,
        "quiet": "" if suite.first.config.epochs else undisturbed(suite.records)[1],
        "advice": None,
        "preview": suite.n < FEWEST_ROUNDS,
        "notes": notes(suite),
        "command": study.repeat(suite),
        "commands": [(program.label, program.first.command) for program in suite.programs.values()]
        + [(f"{record.program}, profiled", record.command) for record in suite.extra],
        "environment": environment_grid(suite.first),
        "refusal": None,
    }
    try:
        result = study.result(suite)
    except UserError as error:
        return found | {"refusal": str(error)}
    figures = study.figures(result)
    preview = [f"preview: n = {suite.n}, no interval and no verdict"] if suite.n < FEWEST_ROUNDS else []
    return found | {
        "answers": preview + study.answer(result),
        "flag": style.flag(result.certificate),
        "fair": result.certificate.sentence(),
        "pictures": [picture(suite.id, f"{study.heading}: {name.replace('-', ' ')}", figure)
                     for name, figure in figures.items()],
        "drawn": drawn_pairs(suite, result) if "ratios" in figures else set(),
        "tables": study.grids(result) + memory_grids([program.first for program in suite.programs.values()]),
        "certificate": tables.certificate_grids(result.certificate),
    }  # fmt: skip


def drawn_pairs(suite: Suite, result) -> set[str]:
    """The text of a comparison's ratio figure for each pair, with its interval."""
    return {pair.sentence() for pair in result.pairs if not pair.flagged} if suite.study == COMPARE.name else set()


def memory_grids(records: list[Record]) -> list[Grid]:
    grid = tables.measured_memory(records)
    said = dict.fromkeys(sentence for record in records for sentence in describe.memory_sentences(record))
    return [replace(grid, caption=". ".join([grid.caption, *said]))] if len(grid.head) > 1 else []


def network_section(records: list) -> dict:
    name = records[0].suite
    return {
        "id": name,
        "heading": f"Network: {network_result.provenance_lines(records)[0]}",
        "question": "How long does a message of each size take, and what bandwidth does it reach?",
        "answers": network_result.answer(records),
        "standing": network_result.provenance_lines(records),
        "notes": network_result.disturbed(records),
        "pictures": [picture(name, title, figure) for title, figure in network_result.figures(records).items()],
        "tables": network_result.grids(records),
        "environment": environment_grid(records[0]),
        "command": network_result.repeat(records),
    }


def foreign_section(records: list) -> dict:
    scalings = scaling.find(records)
    lines = [line for record in records for line in foreign_result.summary_lines(record)]
    return {
        "tables": [foreign_result.grid(records), *map(scaling.grid, scalings)],
        "lines": lines + [line for found in scalings for line in found.lines()],
        "machines": sorted({describe.machine_line(record) for record in records}),
    }


def notes(suite: Suite) -> list[str]:
    found = []
    if suite.left_out:
        found.append(f"{len(suite.left_out)} runs of repeated or incomplete rounds are not counted.")
    if failed := [record for record in suite.failed if not record.failed_on_purpose]:
        found += [f"{len(failed)} runs failed: see below.", *describe.oom_notes(failed, suite.records)]
    return [*found, *describe.cautions(suite.records), *study_of(suite).notes(suite), *dict.fromkeys(suite.first.notes)]


def picture(owner: str, label: str, figure) -> dict:
    """A picture as inline SVG. owner, label: together only of this one in the page. They are a prefix of its ids: its
    lines would be clipped by another figure's frame with the same id."""
    text = drawing.svg_of(figure)
    text = text[text.index("<svg") :]
    own = re.sub(r"[^a-z0-9]+", "-", f"{owner}-{label}-".lower())
    text = re.sub(r'\bid="', f'id="{own}', text)
    text = re.sub(r'(xlink:href="|href="|url\()#', rf"\g<1>#{own}", text)
    return {"name": label, "svg": text.replace("<svg ", '<svg role="img" ', 1)}


def runs_section(records: list[Record]) -> dict | None:
    if not records:
        return None
    newest, drawn = newest_first(records), pool_figure.single_runs_figures(records)
    return {
        "pictures": [picture("single-runs", f"Single runs: {name}", figure) for name, figure in drawn.items()],
        "table": runs_grid(newest),
        "memory": memory_grids(records),
        "commands": commands_of(newest),
    }


def newest_first(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: record.started_at, reverse=True)


def commands_of(records: list[Record]) -> list[tuple[str, str]]:
    return [(f"{when(record)} {record.config.mode}", record.command) for record in records]


def runs_grid(newest: list[Record]) -> Grid:
    """Single runs. The caption names their machine; several machines get short names, in a column."""
    grid, machines = tables.single_runs_grid(newest), [describe.machine_line(record) for record in newest]
    rows = [[when(record), *row] for record, row in zip(newest, grid.rows, strict=True)]
    head = [("started", False), *((NAMES.get(name, name.replace("\n", " ")), number) for name, number in grid.head)]
    names = {machine: f"M{number}" for number, machine in enumerate(sorted(set(machines)), 1)}
    if len(names) == 1:
        return replace(grid, head=head, rows=rows, caption=f"{grid.caption}. {machines[0]}")
    rows = [[*row, names[machine]] for row, machine in zip(rows, machines, strict=True)]
    caption = ". ".join([grid.caption, *(f"{name}: {machine}" for machine, name in names.items())])
    return replace(grid, head=[*head, ("machine", False)], rows=rows, caption=caption)


def failed_grid(records: list[Record]) -> Grid:
    head = [(name, name == "rank") for name in ("started", "suite", "run", "rank", "kind", "message", "command")]
    rows = []
    for record in newest_first(records):
        rank, kind, message = (record.failure[name] for name in ("rank", "kind", "message"))
        rank = "" if rank is None else str(rank)
        rows.append([when(record), record.label.suite or "", record.run_id, rank, kind, message[:300], record.command])
    return Grid(head, rows, "Failed runs, which no figure or table above includes")


def when(record: Record) -> str:
    """Day and time, in UTC as recorded."""
    return record.started_at[:16].replace("T", " ")


def environment_grid(record: Record) -> Grid:
    environment = record.environment
    git = environment.get("git") or {}
    found = {name.replace("_", " "): value for name, value in record.machine.items()}
    found["devices"] = [gpu["name"] for gpu in record.gpus] or environment.get("driver_note")
    found["driver"] = environment.get("driver_version")
    found |= record.versions
    found["revision"] = git.get("revision") and git["revision"] + (" with changes" if git.get("dirty") else "")
    found |= environment.get("variables") or {}
    rows = [[name, ", ".join(map(str, v)) if isinstance(v, list) else str(v)] for name, v in found.items() if v]
    return Grid([("property", False), ("value", False)], rows, "Environment of the first record")


def line_of(suite: Suite) -> str:
    profiled = ", ".join(record.program for record in suite.extra)
    programs = ", ".join(suite.programs) or f"no complete round; profiled: {profiled}"
    return f"{suite.id}: {programs}; n = {suite.n}{'; disturbed' if suite.disturbed else ''}; {suite.machine}"
