"""One HTML page of all records: question and answer first, then certificate, pictures, tables, and how to repeat it.

The page holds everything in itself: no script, no outside link, no font to fetch. Of several suites of one kind, on one
machine with as many devices, one is shown in full: the newest that has its rounds, or the newest with any where none
has. Each other one is a line.
"""

import dataclasses
import re
import statistics
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from bench import files
from bench.analysis import comparison, stats, style, tables, words
from bench.analysis import drawing as figures
from bench.analysis.suite import SEEDED, role_of
from bench.analysis.words import span, with_span
from bench.config.options import ACCURACY, UNSYNCED, RunConfig
from bench.config.rules import variable_of
from bench.errors import UserError
from bench.mistakes import MISTAKES, confession, wrong
from bench.report import pooling as pool
from bench.studies.accuracy import result as accuracy
from bench.studies.breakdown import step_figure as step
from bench.studies.breakdown import timeline_figure as timeline
from bench.studies.compare import figures as compare
from bench.studies.knobs import figures as knobs
from bench.studies.lab import result as labs
from bench.studies.replay import figures as replay
from bench.studies.scaling import figures as scaling
from bench.studies.unsynced import result as unsynced

TEMPLATE = "page.html.j2"

# kind -> (heading, question, make target). The order is that of the page.
KINDS = {
    "compare": ("Comparison", "Which mode is fastest here, by how much, and how sure is that?", "compare"),
    "replay": ("A classic unfairness, replayed", "How far does one unfair setting move the verdict?", "compare"),
    "weak": ("Weak scaling", "How much more is done with more devices, the batch of each fixed?", "scaling"),
    "strong": ("Strong scaling", "How much sooner is the same batch done with more devices?", "scaling"),
    "breakdown": ("Where the step goes", "What does a step spend its time on, and what is not hidden?", "breakdown"),
    "knobs": ("Knobs", "Which setting makes it faster?", "knobs"),
    "accuracy": ("Accuracy", "Do all modes reach the same accuracy?", "accuracy"),
    "unsynced": ("Replicas that start apart", "What is lost when ranks start from different weights?", "unsynced-init"),
    "lab": ("The museum of mistakes", "What does each known mistake do, what is seen of it, what finds it?", "lab"),
}
# What a kind's target takes where nobody says otherwise.
RECIPES = {"accuracy": ACCURACY, "unsynced": UNSYNCED}
# The option that a replay changes -> its name as REPLAY=.
REPLAYS = {
    "workers": "dp-workers",
    "compression": "horovod-fp16",
    "step_barrier": "ddp-barrier",
    "item_sync": "item-sync",
    "per_device_batch": "batch-grows",
}
FULL = {"compare": 8, "replay": 6}  # rounds of a suite that a newer one with fewer does not replace; of others LOOK
LOOK = 3  # rounds; with fewer it is a look, not a result
# What a suite decides by itself for each of its programs, and labels: not part of the command that repeats it.
NOT_IN_COMMAND = {"mode", "num_devices", "launcher", "out", "baselines", "suite", "role", "round", "profile", "sync",
                  "checkpoint"}  # fmt: skip


class Subject(NamedTuple):
    """What a suite is about: suites of one subject can stand for each other."""

    kind: str
    about: str  # which knobs, replay or mistake
    machine: str
    devices: int  # the most


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table. head: (name, whether its cells are numbers)."""

    head: list[tuple[str, bool]]
    rows: list[list[str]]


def write_page(suites: list, others: list[dict], refused: list[str], path: Path) -> Path:
    """Write the page, whole or not at all; returns its path.

    suites: as ``suites_of`` gives them, oldest first. others: records of none of them, failed ones too. refused: a
    sentence for each file that is no good record. Raises OSError when it cannot be written.
    """
    text = page(suites, others, refused)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with files.written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def page(suites: list, others: list[dict], refused: list[str]) -> str:
    """The page as text."""
    import jinja2

    shown = {}
    for suite in suites:
        before = shown.get(subject(suite))
        if before is None or standing_of(suite) >= standing_of(before):
            shown[subject(suite)] = suite
    order = sorted(shown, key=place_of)
    twins = Counter(key[:2] for key in order)
    lines = [line_of(suite) for suite in reversed(suites) if suite is not shown[subject(suite)]]
    failed = [r for r in others if r["status"] == "failed"] + [r for suite in suites for r in suite.failed]
    failed = [r for r in failed if not labs.hangs_on_purpose(r)]
    runs = [r for r in others if r["status"] == "ok"]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(TEMPLATE).render(
        sections=[section(shown[key], twins[key[:2]] > 1) for key in order if key.kind != "lab"],
        museum=[card(shown[key], twins[key[:2]] > 1) for key in order if key.kind == "lab"],
        museum_words=KINDS["lab"],
        made_on_purpose=[
            f"{r['run_id']}: {confession(r['config']['mistake'])}" for r in runs if r["config"]["mistake"] != "none"
        ],
        more=lines + failed_lines(others),
        runs=runs_grid(runs),
        failed=failed_grid(failed),
        refused=refused,
    )


def place_of(key: Subject) -> tuple:
    """Where a suite stands on the page: by kind, and the mistakes in the order of the museum."""
    kind = list(KINDS).index(key.kind) if key.kind in KINDS else len(KINDS)
    return kind, list(MISTAKES).index(key.about) if key.about in MISTAKES else 0, key


def subject(suite) -> Subject:
    """What a suite is about."""
    devices = max(record["config"]["num_devices"] for record in records_of(suite))
    about = replayed(suite) if suite.kind == "replay" else ""
    if suite.kind == "knobs":
        about = next(iter(programs(suite))).partition(" ")[0]
    if suite.kind == "lab":
        about = labs.name_of(suite)
    return Subject(suite.kind, about, pool.machine_of(suite.first).hardware, devices)


def programs(suite) -> dict[str, list[dict]]:
    """Role -> its records; those of the profiled runs where no round is whole."""
    return suite.roles or {role_of(record): [record] for record in suite.extra}


def records_of(suite) -> list[dict]:
    """The records of all programs."""
    return [record for records in programs(suite).values() for record in records]


def standing_of(suite) -> int:
    """2 for a suite with the rounds that it should have, 1 for one with fewer, 0 for one with none."""
    return 2 if suite.n >= FULL.get(suite.kind, LOOK) else min(1, suite.n)


def replayed(suite) -> str:
    """The name of the replay: by the options in which the fair and the unfair program differ."""
    changed = replay.changed(suite)
    known = [REPLAYS[name] for name in REPLAYS if name in changed]
    return known[0] if known else ", ".join(changed) or "nothing"


def section(suite, twin: bool = False) -> dict:
    """All that the template shows of one suite; one that cannot be compared says why and shows nothing else.

    twin: another suite of the same kind, on another machine or number of devices, is on the page too.
    """
    heading, question, _ = KINDS.get(suite.kind, (suite.kind.capitalize(), "Which is fastest?", suite.kind))
    about = subject(suite)
    heading += f": {about.about}" if about.about else ""
    heading += where(suite) if twin else ""
    if about.about == "nothing":
        question = "The control: does a verdict move when nothing is changed?"
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
        result = style.result_of(suite)
    except UserError as error:
        return found | {"refusal": str(error)}
    return found | {
        "refusal": None,
        "answers": look(suite) + ANSWERS.get(suite.kind, answer_compare)(result),
        "flag": style.flag(result.certificate),
        "fair": result.certificate.sentence(),
        "pictures": [picture(suite, name, figure) for name, figure in figures.figures_of(result).items()],
        "tables": TABLES.get(suite.kind, tables_compare)(result),
        "certificate": certificate_grids(result.certificate),
    }


def where(suite) -> str:
    """The devices and the machine of a suite, behind a heading."""
    about, workers = subject(suite), "GPU" if suite.device == "cuda" else "CPU worker"
    return f" ({about.devices} {workers}{'' if about.devices == 1 else 's'}, {about.machine})"


def card(suite, twin: bool = False) -> dict:
    """A lab as a card of the museum: what ``section`` has of it, with the mistake's title, its question and its words.

    A lab that cannot be compared says why under its name.
    """
    found, name = section(suite), labs.name_of(suite)
    if name not in labs.LABS:
        return found | {"heading": suite.id, "made": "", "words": []}
    return found | {
        "heading": f"{name}: {MISTAKES[name].title}{where(suite) if twin else ''}",
        "question": labs.LABS[name].question,
        "made": f"Made on purpose, in the wrong version alone: {switch_words(name)}",
        "words": labs.about(name),
    }


def switch_words(name: str) -> str:
    """What makes a right run wrong, as a person types it: "MISTAKE=whole-data", "INIT_SYNC=0"."""
    return " ".join(f"{option.upper()}={int(v) if isinstance(v, bool) else v}" for option, v in wrong(name).items())


def look(suite) -> list[str]:
    """What stands before the answer of a suite with few rounds."""
    return [f"quick: n = {suite.n}, a look, not a result"] if suite.n < LOOK else []


def notes(suite) -> list[str]:
    """What a reader must know of a suite's rounds."""
    found = ["One round: no interval, and nothing can be said of its noise."] if suite.n == 1 else []
    if suite.left_out:
        found.append(f"{len(suite.left_out)} runs of rounds that are not whole are left out of every figure.")
    failed = [record for record in suite.failed if not labs.hangs_on_purpose(record)]
    if failed:
        found.append(f"{len(failed)} runs failed: see below.")
    found += knobs.compile_note(suite)
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
    pairs = replay.pairs_of(result)
    return [*map(compare.words_of, pairs), replay.shift_of(result.suite, pairs)]


def answer_scaling(result) -> list[str]:
    """Speedup and efficiency of each mode on the most devices, the fastest first and the bound last."""
    lines = scaling.series(result)
    most = max(count for points in lines.values() for count in points)
    there = [points[most] for points in lines.values() if most in points]
    speedup = {role: scaling.speedup(result, role, most)[0] for role in there}
    return [
        f"{role}: speedup ×{with_span(*scaling.speedup(result, role, most), '.2f')}, "
        f"efficiency {with_span(*scaling.efficiency(result, role, most), '.0f')} %"
        + (" (the bound: no communication)" if comparison.is_bound(result.suite, role) else "")
        for role in sorted(there, key=lambda r: (comparison.is_bound(result.suite, r), -speedup[r]))
    ]


def answer_breakdown(result) -> list[str]:
    """Each program's step and, where it was measured, what of it is exposed communication or DataParallel's copies."""
    suite, lines = result.suite, []
    profiled = timeline.latest(suite)
    for role, records in suite.roles.items():
        line = f"{role}: {style.number(statistics.fmean(map(step.step_ms, records)))} ms a step"
        if f"{role} {step.BARE}" in suite.roles:
            line += f", exposed communication {step.exposed_words(suite, role, *step.exposed_comm(suite, role)[1:])}"
        parts = timeline.parts_ms(profiled[role]) if role in profiled else {}
        if parts:
            line += f"; {timeline.parts_words(parts)} (of one step under a profiler, which slows it)"
        if not role.endswith(step.BARE):
            lines.append(line)
    return lines


def answer_knobs(result) -> list[str]:
    """For each mode the settings that are shown to be faster than those of the run, the most first; what the run had,
    and what chance does among so many settings."""
    suite, lines = result.suite, []
    for base, cells in knobs.bases(suite).items():
        found = {role: stats.compare_rounds(suite.throughputs(base), suite.throughputs(role)) for role in cells}
        faster = sorted((r for r in found if found[r].verdict == "faster"), key=lambda role: -found[role].ratio)
        lines += [found[role].sentence(base, role) for role in faster]
        if not faster:
            lines.append(f"{base}: none of {len(cells)} settings is shown to be faster than those of the run")
        lines.append(knobs.base_words(suite, base))
    return lines + knobs.chance(suite)


UNSYNCED_ON_IMAGENET = (
    "On ImageNet: make unsynced-init GPUS=8 SEEDS=3 DATA=tar:FOLDER MODEL=resnet50 IMAGE_SIZE=224 BATCH=32 EPOCHS=90 "
    "LR=0.1 LR_BATCH=256 LR_WARMUP_EPOCHS=5 SCHEDULE=step WEIGHT_DECAY=1e-4. By the theory "
    "that decay brings the replicas together."
)
ANSWERS = {
    "accuracy": lambda result: result.answer(),
    "lab": lambda result: result.answer(),
    "unsynced": lambda result: [*result.answer(), UNSYNCED_ON_IMAGENET],
    "compare": answer_compare,
    "replay": answer_replay,
    "weak": answer_scaling,
    "strong": answer_scaling,
    "breakdown": answer_breakdown,
    "knobs": answer_knobs,
}


# --- pictures and tables -------------------------------------------------------------------------------------------


def picture(suite, name: str, figure) -> dict:
    """A picture as inline SVG. Its ids are made its own, for those of two pictures would meet in one page."""
    text = figures.svg_of(figure)
    text = text[text.index("<svg") :]
    own = re.sub(r"[^a-z0-9]+", "-", f"{suite.id}-{name}-".lower())
    text = re.sub(r'\bid="', f'id="{own}', text)
    text = re.sub(r'(xlink:href="|href="|url\()#', rf"\g<1>#{own}", text)
    label = f"{KINDS.get(suite.kind, (suite.kind,))[0]}: {name.replace('-', ' ')}"
    return {"name": label, "svg": text.replace("<svg ", '<svg role="img" ', 1)}


def tables_compare(result) -> list[tuple[Grid, str]]:
    """(table, caption) of a suite that compares throughput."""
    flag = style.flag(result.certificate)
    return [(pairs_grid(result), "Ratio of throughput, paired by round"),
            (programs_grid(result.suite), "Each program" + (f": {flag}" if flag else ""))]  # fmt: skip


def tables_accuracy(result) -> list[tuple[Grid, str]]:
    """(table, caption) of a suite that compares accuracy: no throughput is in it."""
    flag = style.flag(result.certificate)
    grid = Grid(accuracy.heads(result), [accuracy.cells(result, row) for row in result.rows])
    return [(grid, "Top-1 accuracy, paired by seed" + (f": {flag}" if flag else ""))]


def tables_lab(result) -> list[tuple[Grid, str]]:
    """(table, caption) of a lab."""
    return [(Grid(labs.HEADS, [labs.cells(result, row) for row in result.rows]), "Right and wrong, paired by seed")]


def tables_unsynced(result) -> list[tuple[Grid, str]]:
    """(table, caption) of replicas that start apart: every model they leave behind, and how far apart they were."""
    flag = style.flag(result.certificate)
    models = Grid(unsynced.HEADS, [unsynced.cells(result, model) for model in result.models])
    apart = Grid(unsynced.APART_HEADS, [unsynced.apart_cells(apart) for apart in result.apart])
    return [(models, "Top-1 accuracy of each model, paired by seed" + (f": {flag}" if flag else "")),
            (apart, "Distance between the replicas, means over seeds")]  # fmt: skip


TABLES = {"accuracy": tables_accuracy, "lab": tables_lab, "unsynced": tables_unsynced}


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
    unequal = [[f.name, f.status, words.grouped(f.values), f.why] for f in order if f.status in STATUS_ORDER]
    equal = [[f.name, words.grouped(f.values)] for f in order if f.status not in STATUS_ORDER]
    what, value = ("what", False), ("value", False)
    return [Grid([what, ("status", False), value, ("why", False)], unequal), Grid([what, value], equal)]


STATUS_ORDER = {"differs": 0, "not recorded": 1, "inherent": 2}


def runs_grid(records: list[dict]) -> Grid:
    """Runs of no suite, the newest first: one each, no interval."""
    head = [("started", False), ("mode", False), ("devices", True), ("processes × threads", True),
            ("global batch", True), ("images/s", True), ("step ms, median [p5–p95]", True), ("steps", True),
            ("peak memory, GiB a device", True), ("machine", False), ("command", False)]  # fmt: skip
    newest = sorted(records, key=lambda r: r["started_at"], reverse=True)
    return Grid(head, [[when(r), *tables.row(r), tables.machine_line(r), r["command"]] for r in newest])


def failed_grid(records: list[dict]) -> Grid:
    """Runs that did not end well."""
    head = [("started", False), ("suite", False), ("run", False), ("rank", True), ("kind", False), ("message", False),
            ("command", False)]  # fmt: skip
    rows = []
    for record in sorted(records, key=lambda r: r["started_at"], reverse=True):
        failure = record["failure"]
        rank = "" if failure["rank"] is None else str(failure["rank"])
        said, suite = failure["message"][:300], record["config"].get("suite") or ""
        rows.append([when(record), suite, record["run_id"], rank, failure["kind"], said, record["command"]])
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


def line_of(suite) -> str:
    """A suite that is not shown, in a line."""
    roles = ", ".join(suite.roles) or f"no whole round, profiled {', '.join(map(role_of, suite.extra))}"
    return f"{suite.id}: {roles}; n = {suite.n}; {suite.machine}"


def failed_lines(records: list[dict]) -> list[str]:
    """Suites without a whole round, a line each. records: of no suite that could be made."""
    suites = {}
    for record in sorted(records, key=lambda r: r["started_at"], reverse=True):
        if record["config"].get("suite"):
            suites.setdefault(record["config"]["suite"], []).append(record["status"] == "ok")
    return [f"{name}: no whole round; {sum(ok)} of {len(ok)} runs ended well" for name, ok in suites.items()]


# --- how to repeat it ----------------------------------------------------------------------------------------------


NAMED_BY = {"knobs": "MODE", "lab": "NAME"}  # kind -> the option that says what it is about; of others REPLAY


def suite_command(suite) -> str:
    """The make command that repeats a suite: the options that its largest programs have in common."""
    target = KINDS.get(suite.kind, KINDS["compare"])[2]
    configs = [record["config"] for record in records_of(suite)]
    most = max(config["num_devices"] for config in configs)
    configs = [config for config in configs if config["num_devices"] == most]
    words = ["make", target, f"{'MAX_GPUS' if target == 'scaling' else 'GPUS'}={most}"]
    words += [f"{'SEEDS' if suite.kind in SEEDED else 'ROUNDS'}={max(1, suite.n)}"]
    about = subject(suite).about
    words += [f"{NAMED_BY.get(suite.kind, 'REPLAY')}={about}"] if about else []
    decided, own = NOT_IN_COMMAND, {}
    if suite.kind == "lab":
        decided = decided - {"mode"} | {"seed", "watch", "pretrained"}
    elif suite.kind in SEEDED:
        decided, own = decided | {"seed", "warmup_steps", "timed_steps"}, RECIPES[suite.kind]
    if suite.kind in SEEDED:  # its rounds' seeds go on from the first one
        words += [f"SEED={seed}" for seed in [min(config["seed"] for config in configs)] if seed]
    for f in dataclasses.fields(RunConfig):
        values = {str(config.get(f.name)) for config in configs}
        value = configs[0].get(f.name)
        if f.name not in decided and len(values) == 1 and value is not None and value != own.get(f.name, f.default):
            words.append(f"{variable_of(f)}={int(value) if isinstance(value, bool) else value}")
    return " ".join(words)


def commands(suite) -> list[tuple[str, str]]:
    """(role, command) of each program, then of each profiled run; its rounds all had the same."""
    found = [(role, records[0]["command"]) for role, records in suite.roles.items()]
    return found + [(f"{role_of(record)}, profiled", record["command"]) for record in suite.extra]
