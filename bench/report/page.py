"""One HTML page of all records: question and answer first, then certificate, pictures, tables, and how to repeat it.

The page holds everything in itself: no script, no outside link, no font to fetch. Only the newest suite of each kind
is shown in full; each older one is a line.
"""

import dataclasses
import re
import statistics
from pathlib import Path

from bench.config import RunConfig, variable_of
from bench.errors import UserError
from bench.report import comparison, figures, stats, tables
from bench.report.figures import compare, knobs, replay, scaling, step, style

TEMPLATE = "page.html.j2"

# kind -> (heading, question, make target). The order is that of the page.
KINDS = {
    "compare": ("Comparison", "Which mode is fastest here, by how much, and how sure is that?", "compare"),
    "replay": ("A classic unfairness, replayed", "How far does one unfair setting move the verdict?", "compare"),
    "weak": ("Weak scaling", "How much more is done with more devices, the batch of each fixed?", "scaling"),
    "strong": ("Strong scaling", "How much sooner is the same batch done with more devices?", "scaling"),
    "breakdown": ("Where the step goes", "What does a step spend its time on, and what is not hidden?", "breakdown"),
    "knobs": ("Knobs", "Which setting of an engine makes it faster?", "knobs"),
}
# The option that a replay changes -> its name as REPLAY=.
REPLAYS = {
    "workers": "dp-workers",
    "compression": "horovod-fp16",
    "step_barrier": "ddp-barrier",
    "item_sync": "item-sync",
    "per_device_batch": "batch-grows",
}
# What a suite decides by itself for each of its programs, and labels: not part of the command that repeats it.
NOT_IN_COMMAND = {"mode", "num_devices", "launcher", "out", "baselines", "suite", "role", "round", "profile", "sync"}


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table. head: (name, whether its cells are numbers)."""

    head: list[tuple[str, bool]]
    rows: list[list[str]]


def write_page(suites: list, others: list[dict], refused: list[str], path: Path) -> Path:
    """Write the page, whole or not at all; returns its path.

    suites: as ``suites_of`` gives them, oldest first. others: records of no suite, failed ones too. refused: a sentence
    for each file that is no good record. Raises OSError when it cannot be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(page(suites, others, refused), encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def page(suites: list, others: list[dict], refused: list[str]) -> str:
    """The page as text."""
    import jinja2

    newest = {subject(suite): suite for suite in suites}
    order = sorted(newest, key=lambda key: (list(KINDS).index(key[0]) if key[0] in KINDS else len(KINDS), key))
    failed = [r for r in others if r["status"] != "ok"] + [r for suite in suites for r in suite.failed]
    runs = [r for r in others if r["status"] == "ok"]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(TEMPLATE).render(
        sections=[section(newest[key]) for key in order],
        older=[older_line(suite) for suite in reversed(suites) if suite is not newest[subject(suite)]],
        runs=runs_grid(runs),
        failed=failed_grid(failed),
        refused=refused,
    )


def subject(suite) -> tuple[str, str]:
    """What a suite is about, its kind and which knobs or replay: of suites with one subject the newest is shown."""
    if suite.kind == "knobs":
        return suite.kind, next(iter(suite.roles), "").partition(" ")[0]
    return suite.kind, replayed(suite) if suite.kind == "replay" else ""


def replayed(suite) -> str:
    """The name of the replay: by the option in which its last two programs differ."""
    configs = [records[0]["config"] for records in suite.roles.values()][-2:]
    changed = [name for name in REPLAYS if len({config.get(name) for config in configs}) > 1]
    return REPLAYS[changed[0]] if changed else "nothing"


def section(suite) -> dict:
    """All that the template shows of one suite; one that cannot be compared says why and shows nothing else."""
    heading, question, _ = KINDS.get(suite.kind, (suite.kind.capitalize(), "Which is fastest?", suite.kind))
    about = subject(suite)[1]
    heading += f": {about}" if about else ""
    found = {
        "id": suite.id,
        "heading": heading,
        "question": question,
        "standing": style.standing(suite),
        "notes": notes(suite),
        "command": suite_command(suite),
        "commands": commands(suite),
        "environment": environment_grid(suite.first),
    }
    try:
        result = comparison.compare_suite(suite)
    except UserError as error:
        return found | {"refusal": str(error)}
    return found | {
        "refusal": None,
        "answers": ANSWERS.get(suite.kind, answer_compare)(result),
        "flag": style.flag(result.certificate),
        "fair": result.certificate.sentence(),
        "pictures": [picture(suite, name, figure) for name, figure in figures.figures_of(result).items()],
        "pairs": pairs_grid(result),
        "programs": programs_grid(suite),
        "certificate": certificate_grids(result.certificate),
    }


def notes(suite) -> list[str]:
    """What a reader must know of a suite's rounds."""
    found = ["One round: no interval, and nothing can be said of its noise."] if suite.n == 1 else []
    if suite.left_out:
        found.append(f"{len(suite.left_out)} runs of rounds that are not whole are left out of every figure.")
    if suite.failed:
        found.append(f"{len(suite.failed)} runs failed: see below.")
    return found + list(dict.fromkeys(note for record in [suite.first] for note in record["topology"]["notes"]))


# --- the answer in words -------------------------------------------------------------------------------------------


def answer_compare(result) -> list[str]:
    """The fastest mode against each other, as the comparison says it; a single round says only its ratio."""
    if result.suite.n > 1:
        return result.answer()
    best = result.ranking()[0]
    ratios = {role: result.pair(role, best).comparison.ratio for role in result.ranking()[1:]}
    return [f"{best} did ×{x:.2f} the images/s of {role} in one round: no interval" for role, x in ratios.items()]


def answer_replay(result) -> list[str]:
    """The fair verdict, the unfair one, and the move between them."""
    pairs = [pair for pair in result.pairs if pair.a == result.base]
    return [*(compare.words_of(pair) for pair in pairs), *filter(None, [replay.shift_of(pairs)])]


def answer_scaling(result) -> list[str]:
    """Speedup and efficiency of each mode on the most devices, the fastest first and the bound last."""
    lines = scaling.series(result)
    most = max(count for points in lines.values() for count in points)
    there = [points[most] for points in lines.values() if most in points]
    speedup = {role: scaling.speedup(result, role, most)[0] for role in there}
    return [
        f"{role}: speedup ×{interval(scaling.speedup(result, role, most), '.2f')}, "
        f"efficiency {interval(scaling.efficiency(result, role, most), '.0f')} %"
        + (" (the bound: no communication)" if comparison.is_bound(result.suite, role) else "")
        for role in sorted(there, key=lambda r: (comparison.is_bound(result.suite, r), -speedup[r]))
    ]


def answer_breakdown(result) -> list[str]:
    """Each program's step and, where it was measured, what of it is exposed communication."""
    suite, lines = result.suite, []
    for role, records in suite.roles.items():
        line = f"{role}: {style.number(statistics.fmean(map(step.step_ms, records)))} ms a step"
        if f"{role} {step.BARE}" in suite.roles:
            line += f", exposed communication {step.exposed_words(suite, role, *step.exposed_comm(suite, role)[1:])}"
        if not role.endswith(step.BARE):
            lines.append(line)
    return lines


def answer_knobs(result) -> list[str]:
    """For each mode the settings that are shown to be faster than its defaults, the most first."""
    suite, lines = result.suite, []
    for base, cells in knobs.bases(suite).items():
        found = {role: stats.compare_rounds(suite.throughputs(base), suite.throughputs(role)) for role in cells}
        faster = sorted((r for r in found if found[r].verdict == "faster"), key=lambda role: -found[role].ratio)
        lines += [found[role].sentence(base, role) for role in faster]
        if not faster:
            lines.append(f"{base}: none of {len(cells)} settings is shown to be faster than the defaults")
    return lines


ANSWERS = {
    "compare": answer_compare,
    "replay": answer_replay,
    "weak": answer_scaling,
    "strong": answer_scaling,
    "breakdown": answer_breakdown,
    "knobs": answer_knobs,
}


def interval(three: tuple, form: str) -> str:
    """A value with its interval, where it has one.

    >>> interval((1.5, 1.4, 1.6), ".2f"), interval((1.5, None, None), ".1f")
    ('1.50 [1.40 to 1.60]', '1.5')
    """
    value, low, high = three
    return f"{value:{form}}" + ("" if low is None else f" [{low:{form}} to {high:{form}}]")


# --- pictures and tables -------------------------------------------------------------------------------------------


def picture(suite, name: str, figure) -> dict:
    """A picture as inline SVG. Its ids are made its own, for those of two pictures would meet in one page."""
    text = figures.svg_of(figure)
    text = text[text.index("<svg") :]
    own = re.sub(r"[^a-z0-9]+", "-", f"{'-'.join(subject(suite))}-{name}-".lower())
    text = re.sub(r'\bid="', f'id="{own}', text)
    text = re.sub(r'(xlink:href="|href="|url\()#', rf"\g<1>#{own}", text)
    label = f"{KINDS.get(suite.kind, (suite.kind,))[0]}: {name.replace('-', ' ')}"
    return {"name": label, "svg": text.replace("<svg ", '<svg role="img" ', 1)}


def pairs_grid(result) -> Grid:
    """The comparisons with their intervals: all pairs where the suite asks for them, else those with the base."""
    all_pairs = KINDS.get(result.suite.kind, KINDS["compare"])[2] == "compare"
    head = [("pair", False), ("ratio", True), ("95 % interval", True), ("Hodges–Lehmann", True),
            ("its interval", True), ("sign-flip p", True), ("n", True), ("verdict", False)]  # fmt: skip
    rows = []
    for pair in result.pairs:
        found = pair.comparison
        if all_pairs or pair.a == result.base:
            flag = " (not a fair comparison)" if pair.flagged else ""
            rows.append([
                f"{pair.b} / {pair.a}", f"{found.ratio:.3f}", span(found.low, found.high), f"{found.hl_ratio:.3f}",
                span(found.hl_low, found.hl_high), f"{found.p:.3f}", str(found.n), found.verdict + flag,
            ])  # fmt: skip
    return Grid(head, rows)


def span(low: float | None, high: float | None) -> str:
    """An interval for a cell.

    >>> span(0.95, 1.05), span(None, None)
    ('0.950 to 1.050', 'none')
    """
    return "none" if low is None else f"{low:.3f} to {high:.3f}"


PROGRAM_HEAD = [
    ("program", False), ("devices", True), ("processes × threads", True), ("global batch", True), ("images/s", True),
    ("lowest to highest", True), ("step ms, median", True), ("peak memory, GiB a device", True), ("n", True),
]  # fmt: skip


def programs_grid(suite) -> Grid:
    """What each program did: geometric mean and range of its rounds."""
    rows = []
    for role, records in suite.roles.items():
        values = suite.throughputs(role)
        shape, step_s = records[0]["topology"], [r["summary"]["step_time_s"]["median"] for r in records]
        rows.append([
            role, str(shape["num_devices"]), f"{shape['world_size']} × {records[0]['samples'][0]['threads']}",
            str(shape["global_batch"]), f"{statistics.geometric_mean(values):.1f}",
            f"{min(values):.1f} to {max(values):.1f}", f"{1e3 * statistics.median(step_s):.1f}",
            tables.memory_cell(records[0]["summary"]["peak_memory_gib"]), str(len(records)),
        ])  # fmt: skip
    return Grid(PROGRAM_HEAD, rows)


def certificate_grids(certificate) -> list[Grid]:
    """The parity certificate in two tables: what is not equal, the unfair first, and what is equal."""
    order = sorted(certificate.facts, key=lambda fact: STATUS_ORDER.get(fact.status, 9))
    unequal = [[f.name, f.status, grouped(f.values), f.why] for f in order if f.status in STATUS_ORDER]
    equal = [[f.name, grouped(f.values)] for f in order if f.status not in STATUS_ORDER]
    what, value = ("what", False), ("value", False)
    return [Grid([what, ("status", False), value, ("why", False)], unequal), Grid([what, value], equal)]


STATUS_ORDER = {"differs": 0, "not recorded": 1, "inherent": 2}


def grouped(values: dict[str, str]) -> str:
    """Values with the roles that have them; a value that all have stands alone.

    >>> grouped({"dp": "2", "ddp": "2"}), grouped({"dp": "1", "ddp": "2", "horovod": "2"})
    ('2', 'dp: 1; ddp, horovod: 2')
    """
    roles = {}
    for role, value in values.items():
        roles.setdefault(value, []).append(role)
    return next(iter(roles)) if len(roles) == 1 else "; ".join(f"{', '.join(r)}: {v}" for v, r in roles.items())


def runs_grid(records: list[dict]) -> Grid:
    """Runs of no suite, the newest first: one each, no interval."""
    head = [("started", False), ("mode", False), ("devices", True), ("processes × threads", True),
            ("global batch", True), ("images/s", True), ("step ms, median [p5–p95]", True), ("steps", True),
            ("peak memory, GiB a device", True), ("machine", False), ("command", False)]  # fmt: skip
    newest = sorted(records, key=lambda r: r["started_at"], reverse=True)
    return Grid(head, [[when(r), *tables.row(r), tables.machine_line(r), r["command"]] for r in newest])


def failed_grid(records: list[dict]) -> Grid:
    """Runs that did not end well."""
    head = [("started", False), ("run", False), ("rank", True), ("kind", False), ("message", False), ("command", False)]
    rows = []
    for record in sorted(records, key=lambda r: r["started_at"], reverse=True):
        failure = record["failure"]
        rank = "" if failure["rank"] is None else str(failure["rank"])
        said = failure["message"][:300]
        rows.append([when(record), record["run_id"], rank, failure["kind"], said, record["command"]])
    return Grid(head, rows)


def when(record: dict) -> str:
    """Day and time, in UTC as recorded."""
    return record["started_at"][:16].replace("T", " ")


def environment_grid(record: dict) -> Grid:
    """Machine, devices, driver, versions, revision and variables of a suite's first record."""
    environment = record["environment"]
    git = environment.get("git") or {}
    found = {k.replace("_", " "): v for k, v in environment["machine"].items()}
    found["devices"] = [device["name"] for device in environment.get("devices") or []] or environment.get("driver_note")
    found["driver"] = environment.get("driver_version")
    found |= environment["versions"]
    found["revision"] = git.get("revision") and git["revision"] + (" with changes" if git.get("dirty") else "")
    found |= environment.get("variables") or {}
    rows = [[name, ", ".join(map(str, v)) if isinstance(v, list) else str(v)] for name, v in found.items() if v]
    return Grid([("what", False), ("value", False)], rows)


def older_line(suite) -> str:
    """An older suite in a line."""
    roles = ", ".join(suite.roles) or "no whole round"
    return f"{suite.id}: {roles}; n = {suite.n}; {suite.machine}"


# --- how to repeat it ----------------------------------------------------------------------------------------------


def suite_command(suite) -> str:
    """The make command that repeats a suite: the options that its largest programs have in common."""
    target = KINDS.get(suite.kind, KINDS["compare"])[2]
    configs = [record["config"] for records in suite.roles.values() for record in records] or [suite.first["config"]]
    most = max(config["num_devices"] for config in configs)
    configs = [config for config in configs if config["num_devices"] == most]
    words = ["make", target, f"{'MAX_GPUS' if target == 'scaling' else 'GPUS'}={most}", f"ROUNDS={max(1, suite.n)}"]
    about = subject(suite)[1]
    words += [f"{'MODE' if suite.kind == 'knobs' else 'REPLAY'}={about}"] if about else []
    for f in dataclasses.fields(RunConfig):
        values = {str(config.get(f.name)) for config in configs}
        value = configs[0].get(f.name)
        if f.name not in NOT_IN_COMMAND and len(values) == 1 and value is not None and value != f.default:
            words.append(f"{variable_of(f)}={int(value) if isinstance(value, bool) else value}")
    return " ".join(words)


def commands(suite) -> list[tuple[str, str]]:
    """(role, command) of each program; its rounds all had the same."""
    return [(role, records[0]["command"]) for role, records in suite.roles.items()]
