"""The manual's example of a forecast with its pictures: the command, and what it has drawn."""

import os
from pathlib import Path

from bench.files import PROJECT

DEVICES, LINK = "2,4,8,16,32,64", "1gbit,0us"
PICTURES = {
    "efficiency": "Efficiency over devices, predicted, measured and emulated",
    "timeline": "One step, predicted and emulated",
    "winner": "Which mode wins over link and computation",
}


def words(folder: Path) -> dict[str, str]:
    """The variables of `make predict step`. folder: of the profile, and where the pictures go."""
    points = folder.parent
    return {"RECORD": f"{folder}/profile-gpt.json", "DEVICES": DEVICES, "LINK": LINK, "POINTS": f"{points}",
            "OUT": f"{folder}"}  # fmt: skip


def text(folder: Path) -> str:
    """The command as it is typed in the project's folder, and the pictures."""
    typed = words(folder.relative_to(PROJECT))
    command = " \\\n    ".join(["make predict step", *(f"{name}={value}" for name, value in typed.items())])
    place = os.path.relpath(folder, PROJECT / "tutorials" / "manual")
    shown = [f"![{what}]({place}/pictures/forecast-{name}.svg)" for name, what in PICTURES.items()]
    return "\n\n".join([f"```\n{command}\n```", *shown]) + "\n"
