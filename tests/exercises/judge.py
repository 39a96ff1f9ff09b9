"""Answers whose worth is known, judged by the tests of a problem set: do the tests tell right from wrong?

``answers/NN_name.md`` belongs to the set ``tutorials/exercises/NN_name.md``. Under the heading of a task stand its
answers: a line that says why this one is right or wrong, then a fence with the functions that it defines.

    Right: …            has the points of every test of these functions
    Wrong: …            does not
    Wrong, 2 of 4: …    has two of these four points
    Wrong, hangs: …     is ended early: its ranks wait for each other
    Wrong, by KEY: …    knows what the published hidden tests ask: has all points with KEY=0, and not with another KEY

``python -m tests.exercises.judge NOTEBOOK BLANK ANSWERS RESULTS MOST`` runs the set's cells up to a task with the
solutions of the tasks before, without their tests, and tries the answers of the task, each in a copy of the process:
the solution, the students' blank, those by KEY and, of each function, the first MOST wrong ones and the right ones; of
the right ones of a task whose tests start ranks all but one of the first MOST. RESULTS gets a line of JSON per answer:
the error of each test cell, None where there is none; or None for an answer that is not tried.
"""

import ast
import json
import os
import re
import signal
import sys
import types
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from bench import course
from bench.course.exercises import cells
from tests.exercises import forked

ANSWERS = Path(__file__).parent / "answers"
CELL_LIMIT_S = 200.0  # a cell takes seconds; this machine may be busy
HANGING_LIMIT_S = 4.0
STARTS_RANKS = re.compile(r"\brun_on_ranks\(|\btorch\.distributed\.run\b")
FENCE = re.compile(
    r"^(?P<kind>Right|Wrong)(?:, (?P<hangs>hangs)|, (?P<by_key>by KEY)|, (?P<points>[\d.]+) of [\d.]+)?: "
    r"(?P<why>[^\n]+(?:\n[^\n]+)*)\n\n"
    r"^```python\n(?P<source>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Answer:
    """points: what it has of the tests of its functions, where that is said. by_key: right with KEY=0."""

    task: int
    right: bool
    hangs: bool
    by_key: bool
    points: float | None
    why: str
    source: str


def answers_of(path: Path) -> list[Answer]:
    """The answers of a file. Raises ValueError for a fence that is none."""
    found, pieces = [], re.split(r"^## Task (\d+)\n", path.read_text(), flags=re.MULTILINE)
    numbers = [int(number) for number in pieces[1::2]]
    if numbers != sorted(set(numbers)):
        raise ValueError(f"{path.name}: the headings number the tasks {numbers}")
    for number, part in zip(numbers, pieces[2::2], strict=True):
        fences = list(FENCE.finditer(part))
        if len(fences) != part.count("```python"):
            raise ValueError(f"{path.name}, task {number}: a fence without its line Right: … or Wrong: …")
        for fence in fences:
            points = float(fence["points"]) if fence["points"] else None
            right, hangs, by_key = fence["kind"] == "Right", bool(fence["hangs"]), bool(fence["by_key"])
            found.append(Answer(number, right, hangs, by_key, points, " ".join(fence["why"].split()), fence["source"]))
    return found


def functions(source: str) -> set[str]:
    return {part.name for part in ast.parse(source).body if isinstance(part, ast.FunctionDef)}


def kind_of(cell: dict) -> str:
    told = cell["metadata"]["nbgrader"]
    return "test" if told["grade"] else "answer" if told["solution"] else "given"


def parts_of(notebook: dict) -> list[list]:
    """The code cells in order, cut after every row of tests: an answer is judged by the tests of its own part."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    parts = [[]]
    for kind, row in groupby(code, kind_of):
        parts[-1] += row
        if kind == "test":
            parts.append([])
    return parts


def judge(notebook: Path, blank: Path, answers: Path, results: Path, most: int) -> None:
    """Write a line for every answer of a set that is tried."""
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    module.__dict__.update(display=cells.display, __builtins__=__builtins__)
    course.run_on_ranks = forked.run_on_ranks
    everything, blanks, tried = answers_of(answers), json.loads(blank.read_text())["cells"], Counter()

    def tell(answer: int | str, errors: dict | None) -> None:
        with results.open("a") as file:
            file.write(json.dumps({"answer": answer, "errors": errors}) + "\n")

    for part in parts_of(json.loads(notebook.read_text())):
        task = re.match(r"s\d+-task(\d+)-", part[-1]["id"]) if part else None
        to_answer = {cell["id"]: functions(cell["source"]) for cell in part if kind_of(cell) == "answer"}
        names = set().union(*to_answer.values())
        costly = any(STARTS_RANKS.search(cell["source"]) for cell in part)
        if to_answer:
            tell("solution", in_a_copy(part, module, {}, forked.run_on_ranks))
            empty = {cell["id"]: "".join(cell["source"]) for cell in blanks if cell["id"] in to_answer}
            tell("blank", in_a_copy(part, module, empty, forked.alone))  # what is not there fails on every rank
        for number, answer in enumerate(everything):
            own = functions(answer.source)
            if task and answer.task == int(task[1]) and names & own:
                kind = answer.task if costly and answer.right else (part[0]["id"], frozenset(names & own), answer.right)
                tried[kind] += not answer.by_key
                limited = (costly or not answer.right) and not answer.by_key
                if limited and tried[kind] > most - answer.right:
                    tell(number, None)
                    continue
                sources = {name: answer.source for name, theirs in to_answer.items() if own & theirs}
                tell(number, in_a_copy(part, module, sources, hurried if answer.hangs else forked.run_on_ranks))
        for cell in part:
            if kind_of(cell) != "test" and (error := run(cell["source"], cell["id"], module)):
                raise RuntimeError(error)


def hurried(*arguments, **options) -> list:
    return forked.run_on_ranks(*arguments, **options | {"timeout": HANGING_LIMIT_S})


CHOSEN = {}  # ENGINE, as the set itself chooses it


def run(source: str, name: str, module: types.ModuleType, engine: str | None = "torch") -> str | None:
    """What goes wrong in a cell; None when nothing does. engine: as where Horovod is not installed, without which ranks
    start in a fraction of the time; None: the set's own."""
    error = cells.run(source, name, module, CELL_LIMIT_S)[0]
    if "ENGINE" in vars(module):
        CHOSEN.setdefault("ENGINE", module.ENGINE)
        module.ENGINE = engine or CHOSEN["ENGINE"]
    return error


def in_a_copy(part: list, module: types.ModuleType, sources: dict[str, str], ranks: Callable) -> dict[str, str | None]:
    """The error of each test cell of a part when these sources replace the part's, by the cells' ids."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        errors = {"": "the process ended"}
        try:
            errors = errors_of(part, module, sources, ranks)
        finally:
            os.write(writing, json.dumps(errors).encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    os.waitpid(pid, 0)
    return json.loads(said)


def errors_of(part: list, module: types.ModuleType, sources: dict[str, str], ranks: Callable) -> dict[str, str | None]:
    course.run_on_ranks = ranks
    errors, engine = {}, "torch" if sources else None
    vars(module).update({} if sources else CHOSEN)
    for cell in part:
        error = run(sources.get(cell["id"], cell["source"]), cell["id"], module, engine)
        if kind_of(cell) == "test":
            errors[cell["id"]] = error and error[-1500:]
        elif error and ranks is not forked.alone:
            raise RuntimeError(error)
    return errors


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, cells.raise_timeout)
    judge(*map(Path, sys.argv[1:5]), int(sys.argv[5]))
    os._exit(0)
