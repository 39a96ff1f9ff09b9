"""What a Watch made of scripts that it had never seen: the manual's tables, from JSON files beside the reference
records, which `python -m tests.watched` wrote."""

import json
from collections import Counter
from pathlib import Path

from bench.measure.environment import cores_in_words
from bench.mistakes import DETECTED
from bench.report import markdown


def scripts(path: Path) -> str:
    """The scripts of tests/watched: sums by kind, how often each mistake was found, and what cannot be seen."""
    table = json.loads(path.read_text())
    rows = table["rows"]
    made, found = Counter(), Counter()
    for row in rows:
        made.update(row["mistakes"])
        found.update(row["mistakes"] if row["good"] else [])
    lines = [f"{len(rows)} scripts in {table['seconds']} s. {machine(table)}\n"]
    lines += [f"- {line}" for line in table["counts"]]
    each = [[f"`{name}`", mistake.title, str(made[name]), str(found[name])] for name, mistake in DETECTED.items()]
    head = [("mistake", False), ("what it is", False), ("scripts with it", True), ("as expected", True)]
    lines.append("\n" + markdown.table(head, each))
    unseen = [[row["about"], row["cannot"]] for row in rows if row["cannot"]]
    lines.append(
        "Mistakes that a Watch cannot detect:\n\n" + markdown.table([("script", False), ("reason", False)], unseen)
    )
    return "\n".join(lines)


def published(path: Path) -> str:
    """Other people's scripts: what was found in each as it is, and with a mistake planted."""
    table = json.loads(path.read_text())
    rows = []
    for row in table["rows"]:
        said = [f"`{name}`" for name in row["found"]] + [f"`{name}`?" for name in row["asked"]]
        planted = f"with `{row['planted']}` planted" if row["planted"] else "unchanged"
        rows.append([f"{row['script']} (`{row['file']}` at {row['commit']})", planted, ", ".join(said) or "nothing"])
    head = [("script", False), ("version", False), ("mistakes found; possible mistakes (?)", False)]
    return f"{machine(table)}\n\n{markdown.table(head, rows)}"


def timed(path: Path) -> str:
    """Other people's scripts under ``bench time``: their final weights, and what was found."""
    table, rows = json.loads(path.read_text()), []
    for row in table["rows"]:
        said = [f"`{name}`" for name in row["found"]] + [f"`{name}`?" for name in row["asked"]]
        note = f" ({row['note']})" if row["note"] else ""
        script = f"{row['script']} `{row['file']}` at {row['commit']}{note}"
        rows.append([script, row["engine"], row["weights"], ", ".join(said) or "nothing"])
    head = [("script", False), ("exchange", False), ("final weights with and without `bench time`", False),
            ("mistakes found; possible mistakes (?)", False)]  # fmt: skip
    return f"{machine(table)}\n\n{markdown.table(head, rows)}"


def cost(path: Path) -> str:
    table = json.loads(path.read_text())
    where = machine(table).removeprefix("Two ranks on the CPU: ").rstrip(".")
    percent, long_ms = 100 * table["share"], table["after_ms"] / table["share"]
    return (
        f"In its first {table['first_epochs']} epochs a Watch adds {table['first_ms']:.2f} ms to a step, later "
        f"{table['after_ms']:.2f} ms: {percent:g} % of a step of {long_ms:.0f} ms "
        f"(medians over {table['epochs']} epochs of {table['steps']} steps, one process on the CPU; {where}). "
        "`python -m tests.validation.watch_cost` measures it.\n"
    )


def machine(table: dict) -> str:
    where, versions = table["environment"]["machine"], table["environment"]["versions"]
    names = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "horovod") if versions.get(name))
    return f"Two ranks on the CPU: {where['cpu_model']}, {cores_in_words(where['usable_cores'])}; {names}."
