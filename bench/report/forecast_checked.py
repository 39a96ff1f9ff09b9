"""The forecast against emulation in the manual: the figures of a committed file, its picture, every setting."""

import os
from pathlib import Path

from bench.analysis import style
from bench.files import PROJECT
from bench.report import markdown
from bench.without_training.forecast_check import result


def figures(folder: Path) -> str:
    """Both sets' figures, the engines' table, the picture, and what was left out."""
    data = result.read(folder)
    head = [f"- {line}" for line in result.answer(data)]
    drawing = data["drawing"]
    head.append(f"- seed {drawing['seed']}; {drawing['warmup']} steps before and {drawing['steps']} that count")
    head += [f"- {count} combinations are left out: {why}" for why, count in drawing["left_out"].items()]
    place = os.path.relpath(folder, PROJECT / "tutorials" / "manual")
    picture = f"![A step, predicted against emulated]({place}/pictures/{folder.name}.png)"
    every = f"[Every setting, and the profiles]({place}/).\n"
    return "\n".join(["\n".join(head) + "\n", markdown.grid(result.grid(data)), picture + "\n", worst(data), every])


def worst(data: dict, most: int = 5) -> str:
    """The settings that are off most."""
    rows = sorted(data["rows"], key=lambda row: -abs(row["off"]))[:most]
    head = [("off most", False), ("emulated, s", True), ("predicted, s", True), ("off by", True), ("set", False)]
    return markdown.table(head, [
        [row["name"], style.number(row["emulated_s"]), style.number(row["predicted_s"]), f"{100 * row['off']:+.1f} %",
         result.SETS[0] if row["made_with"] else result.SETS[1]] for row in rows
    ])  # fmt: skip
