"""The manual's example of a forecast with its pictures: the command, and what it has drawn."""

import os
from pathlib import Path

from bench.cli import COMMANDS
from bench.cli.actions import predict_step
from bench.files import PROJECT
from bench.predict.step import fit, result
from bench.report import markdown

DEVICES, LINK = "2,4,8,16,32,64", "1gbit,0us"
PICTURES = {
    "efficiency": "Efficiency over devices, predicted, measured and emulated",
    "timeline": "One step, predicted and emulated",
}


def words(folder: Path) -> dict[str, str]:
    """The variables of `make predict step`. folder: of the profile, and where the pictures go."""
    points = folder.parent
    return {"RECORD": f"{folder}/profile-gpt.json", "DEVICES": DEVICES, "LINK": LINK, "POINTS": f"{points}",
            "OUT": f"{folder}"}  # fmt: skip


def fitted_words(folder: Path) -> dict[str, str]:
    """The same, fitted to the runs beside the profile."""
    return {"RECORD": f"{folder}/profile-gpt.json,{folder.parent}", "MODES": "ddp,zero1", "DEVICES": "2,4,8,16",
            "LINK": LINK, "OUT": f"{folder}"}  # fmt: skip


def command(words: dict[str, str]) -> str:
    typed = " \\\n    ".join(["make predict step", *(f"{name}={value}" for name, value in words.items())])
    return f"```\n{typed}\n```"


def picture(folder: Path, name: str, what: str) -> str:
    place = os.path.relpath(folder, PROJECT / "tutorials" / "manual")
    return f"![{what}]({place}/pictures/forecast-{name}.svg)"


def text(folder: Path) -> str:
    """The command as it is typed in the project's folder, and the pictures."""
    shown = [picture(folder, *each) for each in PICTURES.items()]
    return "\n\n".join([command(words(folder.relative_to(PROJECT))), *shown]) + "\n"


def fitted(folder: Path) -> str:
    """The command of the fit, its tables and its picture."""
    args = (
        COMMANDS["predict"]
        .parts["step"]
        .parse([f"--{name.lower()}={value}" for name, value in fitted_words(folder).items()])
    )
    asked, _ = predict_step.read_inputs(args)
    grids = [result.grid(predict_step.forecasts(args, asked), asked.profile.unit), fit.grid([*asked.fits.values()])]
    shown = picture(folder, "fitted", "Efficiency over devices, predicted from measured runs")
    return "\n\n".join([command(fitted_words(folder.relative_to(PROJECT))), *map(markdown.grid, grids), shown]) + "\n"
