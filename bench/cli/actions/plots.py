"""`bench report --format plots`: pictures of suites, next to their records, and of single runs."""

from pathlib import Path

from bench.analysis import drawing
from bench.analysis.suite import suites_of
from bench.cli.base import DEFAULT_FOLDER, warn
from bench.errors import UserError, printable
from bench.record import packed
from bench.record.read import find_records
from bench.report import pool_figure
from bench.studies.registry import study_of
from bench.tasks.network import result
from bench.tasks.network.record import by_suite, place_of
from bench.tasks.network.record import find as find_networks


def run(args) -> int:
    """Draw all suites and single runs below a folder. Raises UserError where there is nothing to draw."""
    folder = Path(args.records or DEFAULT_FOLDER)
    networks, bad = find_networks(folder)
    records, refused = find_records(folder, needed=not networks + bad)
    suites, refused = suites_of(records), refused + bad
    single = pool_figure.single_runs_figures(records)
    for suite in suites:
        study = study_of(suite)
        try:
            drawn = study.figures(study.result(suite))
        except UserError as error:
            refused.append(str(error))
            continue
        save(drawn, suite.folder)
    for found in by_suite(networks).values():
        save(result.figures(found), place_of(found))
    save(single, packed.folder_of(folder))
    for sentence in refused:
        warn(f"refused: {sentence}")
    if not suites and not networks and not single:
        raise UserError(f"no runs to plot in {folder}: run `make bench` or `make compare` first")
    return 0


def save(figures: dict, folder: Path) -> None:
    for path in drawing.save_all(figures, folder):
        print(printable(str(path)))
