"""Write again what is made from the code and the records, and say what has changed.

    python -m tests.validation.renew

Tables of the README and the manual, the README and the pictures of each folder of reference records, the pictures in
the chapters' texts, the still pictures of the interactive figures. A test says when one of the texts is stale.
"""

import argparse
import functools
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bench import files
from bench.analysis import drawing, power_figure
from bench.analysis.suite import Suite
from bench.cli import COMMANDS
from bench.cli.actions import predict_step as forecast
from bench.course import chapters
from bench.files import PROJECT
from bench.predict.pictures.figures import figures
from bench.record.disturbance import undisturbed
from bench.record.view import Record
from bench.studies.registry import study_of
from bench.tasks.network import result as network_result
from bench.tasks.network.record import by_suite, place_of
from bench.tasks.network.record import find as find_networks
from tests.browser.chromium import CHROMIUM
from tests.browser.scripts import NODE, still_pictures
from tests.validation.forecast import figure as forecast_check_figure
from tests.validation.forecast import published
from tests.validation.forecast import result as forecast_check
from tests.validation.pages import checkpointed, forecast_example, illustrations, manual, reference_page


def main(argv: list[str] | None = None) -> int:
    """Draw the pictures, write the texts; print each file that has changed, and each suite that is not a reference."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
    changed = [*draw(), *write()]
    for path in changed:
        print(path.relative_to(PROJECT))
    for suite in committed():
        quiet, said = undisturbed(suite.records)
        if not quiet:
            print(f"{suite.id}: {reference_page.NO_REFERENCE}. {said}")
    print(f"{len(changed)} files changed")
    return 0


def write() -> Iterator[Path]:
    """Write the texts that are stale."""
    return stale(manual.documents())


def stale(contents: Iterable[tuple[Path, str]]) -> Iterator[Path]:
    """Write each file whose text is another one, and name it."""
    for path, text in contents:
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(exist_ok=True)
            with files.atomic_write(path) as temporary:
                temporary.write_text(text)
            yield path


def committed() -> list[Suite]:
    """Every suite of reference records."""
    return [suite for folder in manual.reference_folders() for suite in reference_page.read(folder)[0]]


def draw() -> Iterator[Path]:
    """Draw the committed pictures again, of what has some."""
    for folder, save in pictures():
        if before := {path: path.read_bytes() for path in (folder / "pictures").glob("*")}:
            yield from (path for path in save() if path.read_bytes() != before.get(path))
    yield from draw_chapters()
    if NODE or CHROMIUM:
        with tempfile.TemporaryDirectory() as folder:
            yield from stale(still_pictures(Path(folder)))


def pictures() -> Iterator[tuple[Path, Callable[[], list[Path]]]]:
    """Each folder that may have pictures, and what draws them into it."""
    for suite in committed():
        yield suite.folder, functools.partial(draw_suite, suite)
    for found in by_suite(find_networks(manual.REFERENCE)[0]).values():
        yield place_of(found), functools.partial(draw_network, found)
    for record in single_runs():
        yield Path(record.folder), functools.partial(draw_run, record)
    yield manual.FORECAST_CHECK, draw_check
    yield manual.FORECAST_CHECK, draw_forecast
    yield published.FOLDER, draw_published
    yield checkpointed.FOLDER, checkpointed.save


def single_runs() -> list[Record]:
    """The reference records of GPUs that report power."""
    alone = [record for folder in manual.reference_folders() for record in reference_page.read(folder)[1]]
    return [record for record in alone if power_figure.has_power(record)]


def draw_run(record: Record) -> list[Path]:
    """That of one run's power."""
    return drawing.save_all({"power": power_figure.draw_runs([record])}, Path(record.folder))


def draw_suite(suite: Suite) -> list[Path]:
    """A suite's pictures."""
    study = study_of(suite)
    return drawing.save_all(study.figures(study.result(suite)), suite.folder)


def draw_network(found: list) -> list[Path]:
    """Those of a network's records."""
    return drawing.save_all(network_result.figures(found), place_of(found))


def draw_check() -> list[Path]:
    """That of the forecast compared with emulation."""
    return forecast_check_figure.save(forecast_check.read(manual.FORECAST_CHECK), manual.FORECAST_CHECK)


def draw_forecast() -> list[Path]:
    """Those of the manual's forecast."""
    drawn = {}
    for words in (forecast_example.words, forecast_example.fitted_words):
        typed = [f"--{name.lower()}={value}" for name, value in words(manual.FORECAST_CHECK).items()]
        args = COMMANDS["predict"].parts["step"].parse(typed)
        asked, measured = forecast.read_inputs(args)
        points = forecast.points_of(args, asked).with_others(measured)
        drawn |= figures(asked, forecast.forecasts(args, asked), points)
    return drawing.save_all(drawn, manual.FORECAST_CHECK)


def draw_published() -> list[Path]:
    """Those of the forecast compared with published tables."""
    tables = published.read()
    return forecast_check_figure.save_published(published.judged(tables), published.learned(tables), published.FOLDER)


def draw_chapters() -> Iterator[Path]:
    """Draw the pictures in the chapters' texts again; those that no text has any more are removed."""
    drawn = {path: text for chapter in chapters.chapters() for path, text in illustrations.drawn(chapter)}
    for path in set((chapters.TUTORIALS / "pictures").glob("*")) - set(drawn):
        path.unlink()
        yield path
    yield from stale(drawn.items())


if __name__ == "__main__":
    sys.exit(main())
