"""`bench plots`: every suite's pictures, in a folder `pictures` next to its records."""

import sys
from pathlib import Path

from bench.analysis import drawing
from bench.analysis.suite import suites_of
from bench.commands.base import folder_of
from bench.errors import UserError
from bench.record.read import find_records
from bench.studies.registry import study_of
from bench.without_training.network import figure
from bench.without_training.network.record import by_suite, place_of
from bench.without_training.network.record import find as find_networks


def run(args) -> int:
    """Draw all suites below a folder; one that cannot be compared is named. Raises UserError where there is none."""
    folder = Path(folder_of(args))
    networks, bad = find_networks(folder)
    records, refused = find_records(folder, needed=not networks)
    suites, refused = suites_of(records), refused + bad
    if not suites and not networks:
        raise UserError(f"no suite below {folder} to draw: run `make compare` first")
    for suite in suites:
        study = study_of(suite)
        try:
            drawn = study.figures(study.result(suite))
        except UserError as error:
            refused.append(str(error))
            continue
        for path in drawing.save_all(drawn, suite.folder)[::2]:  # the SVG of each
            print(path)
    for found in by_suite(networks).values():
        for path in drawing.save_all(figure.figures(found), place_of(found))[::2]:
            print(path)
    for sentence in refused:
        print(f"refused: {sentence}", file=sys.stderr)
    return 0
