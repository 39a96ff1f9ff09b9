"""Every study, in the order of the page. To add one: its folder (README.md here), and its name here."""

import importlib

from bench.studies.base import Study

FOLDERS = ("compare", "replay", "scaling", "breakdown", "sweep", "accuracy", "unsynced", "lab")

STUDIES: dict[str, Study] = {
    study.name: study
    for folder in FOLDERS
    for study in importlib.import_module(f"bench.studies.{folder}.study").STUDIES
}


def study_of(suite) -> Study:
    """The study of a suite; an unknown study is treated as a comparison."""
    return STUDIES.get(suite.study, STUDIES["compare"])
