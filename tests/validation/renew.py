"""`bench renew`: write again what is made from the code and the records, and say what has changed.

Tables of the README and the manual, the README and the pictures of each folder of reference records, the pictures in
the chapters' texts. A test says when one of the texts is stale.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bench import files
from bench.analysis import drawing
from bench.analysis.suite import Suite
from bench.commands import COMMANDS, LINES, forecast
from bench.commands.help import markdown
from bench.commands.run_output import announce, print_run
from bench.course import chapters, illustrations
from bench.files import PROJECT
from bench.record.disturbance import undisturbed
from bench.report import forecast_example, manual, reference_page
from bench.studies.registry import study_of
from bench.without_training.forecast_check import figure as forecast_check_figure
from bench.without_training.forecast_check import published
from bench.without_training.forecast_check import result as forecast_check
from bench.without_training.network import figure as network_figure
from bench.without_training.network.record import by_suite, place_of
from bench.without_training.network.record import find as find_networks


def run(args) -> int:
    """Draw the pictures, write the texts; print each file that has changed, and each suite that is no reference."""
    changed = [*draw(), *write()]
    for path in changed:
        print(path.relative_to(PROJECT))
    for suite in committed():
        quiet, said = undisturbed(suite.records)
        if not quiet:
            print(f"{suite.id}: {reference_page.NO_REFERENCE}. {said}")
    print(f"{len(changed)} files changed")
    return 0


def texts() -> Iterator[tuple[Path, str]]:
    """(path, text as it should be) of every text."""
    blocks = {"commands": lambda: "\n".join(markdown(LINES)) + "\n", "sample": lambda: manual.sample(show)}
    return manual.documents(blocks)


def show(console, record, others) -> None:
    """What `bench run` prints of a record."""
    announce(console, record.config)
    print_run(console, record, others)


def write() -> Iterator[Path]:
    """Write the texts that are stale."""
    return stale(texts())


def stale(contents: Iterable[tuple[Path, str]]) -> Iterator[Path]:
    """Write each file whose text is another one, and name it."""
    for path, text in contents:
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(exist_ok=True)
            with files.written_whole(path) as temporary:
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


def pictures() -> Iterator[tuple[Path, Callable[[], list[Path]]]]:
    """Each folder that may have pictures, and what draws them into it."""
    for suite in committed():
        yield suite.folder, functools.partial(draw_suite, suite)
    for found in by_suite(find_networks(manual.REFERENCE)[0]).values():
        yield place_of(found), functools.partial(draw_network, found)
    yield manual.FORECAST_CHECK, draw_check
    yield manual.FORECAST_CHECK, draw_forecast
    yield published.FOLDER, draw_published


def draw_suite(suite: Suite) -> list[Path]:
    """A suite's pictures."""
    study = study_of(suite)
    return drawing.save_all(study.figures(study.result(suite)), suite.folder)


def draw_network(found: list) -> list[Path]:
    """Those of a network's records."""
    return drawing.save_all(network_figure.figures(found), place_of(found))


def draw_check() -> list[Path]:
    """That of the forecast held against emulation."""
    return forecast_check_figure.save(forecast_check.read(manual.FORECAST_CHECK), manual.FORECAST_CHECK)


def draw_forecast() -> list[Path]:
    """Those of the manual's forecast."""
    words = forecast_example.words(manual.FORECAST_CHECK)
    args = COMMANDS["forecast"].parse([f"--{name.lower()}={value}" for name, value in words.items()])
    asked = forecast.asked_of(args)
    return forecast.draw(args, asked, forecast.forecasts(args, asked), forecast.points_of(args, asked))


def draw_published() -> list[Path]:
    """That of the forecast held against published tables."""
    return forecast_check_figure.save_published(published.judged(published.read()), published.FOLDER)


def draw_chapters() -> Iterator[Path]:
    """Draw the pictures in the chapters' texts again; those that no text has any more are removed."""
    drawn = {path: text for chapter in chapters.chapters() for path, text in illustrations.drawn(chapter)}
    for path in set((chapters.TUTORIALS / "pictures").glob("*")) - set(drawn):
        path.unlink()
        yield path
    yield from stale(drawn.items())
