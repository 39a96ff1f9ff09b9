"""`bench renew`: write again what is made from the code and the records, and say what has changed.

Tables of the README and the manual, the README and the pictures of each folder of reference records. A test says when
one of the texts is stale.
"""

from collections.abc import Iterator
from pathlib import Path

from bench import files
from bench.analysis import drawing
from bench.commands import LINES
from bench.commands.help import markdown
from bench.commands.run import announce, print_run
from bench.files import PROJECT
from bench.report import manual, reference_page
from bench.studies.registry import study_of


def run(args) -> int:
    """Draw the pictures, write the texts; print each file that has changed."""
    changed = [*draw(), *write()]
    for path in changed:
        print(path.relative_to(PROJECT))
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
    for path, text in texts():
        if not path.exists() or path.read_text() != text:
            with files.written_whole(path) as temporary:
                temporary.write_text(text)
            yield path


def draw() -> Iterator[Path]:
    """Draw the committed pictures again; those that were drawn before are drawn, and no others."""
    for folder in sorted(path for path in manual.REFERENCE.iterdir() if path.is_dir()):
        for suite in reference_page.read(folder)[0]:
            place = Path(suite.first.folder).parent / "pictures"
            study = study_of(suite)
            for name, figure in study.figures(study.result(suite)).items() if place.is_dir() else ():
                before = [(place / f"{name}.{kind}") for kind in ("svg", "png")]
                old = [path.read_bytes() if path.exists() else b"" for path in before]
                drawing.save(figure, place, name)
                yield from (path for path, bytes_ in zip(before, old, strict=True) if path.read_bytes() != bytes_)
