"""A plugin of pytest on every rank: leaves tests out, and writes down the result of each other at its end, for a rank
that is aborted says nothing at its end."""

import os
from pathlib import Path

LEFT_OUT = "BENCH_LEFT_OUT"  # in the environment: the names of tests, with blanks between
BEGUN = "begun"  # other than pytest's own: passed, failed, skipped


def results_path(folder: Path, rank: int) -> Path:
    return folder / f"results{rank}"


def results(folder: Path, rank: int) -> dict[str, str]:
    """What a rank has written: test -> what came of it. A test that failed at its end has not passed."""
    path, found = results_path(folder, rank), {}
    for what, name in (line.split(" ", 1) for line in path.read_text().splitlines()) if path.exists() else ():
        if found.get(name) != "failed":
            found[name] = what
    return found


def write(what: str, name: str) -> None:
    with results_path(Path(), int(os.environ["HOROVOD_RANK"])).open("a") as file:
        file.write(f"{what} {name}\n")


def name_of(nodeid: str) -> str:
    """``a/test_torch.py::TorchTests::test_x`` -> ``test_x``."""
    return nodeid.rpartition("::")[2]


def pytest_collection_modifyitems(config, items) -> None:
    out = set(os.environ[LEFT_OUT].split())
    config.hook.pytest_deselected(items=[item for item in items if name_of(item.nodeid) in out])
    items[:] = [item for item in items if name_of(item.nodeid) not in out]


def pytest_runtest_logstart(nodeid) -> None:
    write(BEGUN, name_of(nodeid))


def pytest_runtest_logreport(report) -> None:
    if report.when == "call" or report.outcome != "passed":
        write(report.outcome, name_of(report.nodeid))
