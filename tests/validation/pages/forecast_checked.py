"""The forecast and the advice against emulation in the manual: the figures of the committed files, the picture, every
setting."""

import os
from pathlib import Path

from bench.analysis import style
from bench.files import PROJECT
from bench.report import markdown
from tests.validation.forecast import advice, measured, result
from tests.validation.pages import forecast_published


def figures(folder: Path) -> str:
    """Both sets' figures, the engines' table, the picture, what was left out, and real runs where there are some."""
    data = result.read(folder)
    place = os.path.relpath(folder, PROJECT / "tutorials" / "manual")
    picture = f"![A step, predicted against emulated]({place}/pictures/{folder.name}.svg)"
    every = f"[Every setting, and the profiles]({place}/).\n"
    runs = [markdown.grid(measured.grid(data[measured.NAME]))] if measured.NAME in data else []
    head = provenance_lines(result.answer(data), data)
    return "\n".join([head, markdown.grid(result.grid(data)), picture + "\n", worst(data), *runs, every])


def accuracy(folder: Path) -> str:
    """The errors in short: against emulation, real runs, published tables."""
    data = result.read(folder)
    found = {
        "emulation, with settings that did not shape the model": data["figures"][result.SETS[1]],
        "real trainings between namespaces of one machine": result.figures([row["off"] for row in data[measured.NAME]]),
        "published tables of GPU clusters": result.figures([each.off for each in forecast_published.found()]),
        "their rows of several nodes, fitted to those of one": result.figures(
            [each.off for each in forecast_published.learned()]
        ),
    }
    head = [("compared with", False), ("settings", True), ("median error", True), ("worst error", True)]
    rows = [[what, str(off["n"]), result.percent(off["median"]), result.percent(off["worst"])]
            for what, off in found.items()]  # fmt: skip
    return markdown.table(head, rows)


def provenance_lines(said: list[str], data: dict) -> str:
    """What is said of a file, how its settings were drawn, and what was left out."""
    drawing = data["drawing"]
    drawn = f"seed {drawing['seed']}; {drawing['warmup']} steps before and {drawing['steps']} that count"
    left_out = [f"{count} combinations are omitted: {why}" for why, count in drawing["left_out"].items()]
    return "".join(f"- {line}\n" for line in [*said, drawn, *left_out])


def advised(folder: Path) -> str:
    """How often the first choice was the best one, each program as the one answer for all, and each cluster."""
    data = advice.read(folder)
    return "\n".join([provenance_lines(advice.answer(data), data), *map(markdown.grid, advice.grids(data))])


def worst(data: dict, most: int = 5) -> str:
    """The settings that are off most."""
    rows = sorted(data["rows"], key=lambda row: -abs(row["off"]))[:most]
    head = [("largest errors", False), ("emulated, s", True), ("predicted, s", True), ("error", True), ("set", False)]
    return markdown.table(head, [
        [row["name"], style.number(row["emulated_s"]), style.number(row["predicted_s"]), f"{100 * row['off']:+.1f} %",
         result.SETS[0] if row["made_with"] else result.SETS[1]] for row in rows
    ])  # fmt: skip
