"""A problem set's text as the teacher's notebook: every cell is known to nbgrader by an id that the order gives.

The text is Markdown in which every python fence is a cell. A tag on the fence says what kind:

    ```python                            given: the student may not change it
    ```python tags=["answer"]            the student's, with a solution between two marks
    ```python tags=["test"] points=2     graded, all or nothing; its last part may be hidden

A heading "Task 2 (3 points)" begins a task; its test cells are worth three points together. Directly below it may stand
what the student can do afterwards and the planned time, and, for the teacher alone, what the points of each test cell
are given for and how a person divides them for an answer that does not run:

    **Objective.** You can average gradients over ranks. **Minutes:** 15.

    <!-- BEGIN RUBRIC -->
    - Test 1 (3 points): the mean on every rank. By hand: 2 for the sum over the ranks; 1 for the division.
    <!-- END RUBRIC -->

Hidden tests may draw their inputs from a number of the teacher's, KEY: the region that uses the name begins with its
value, which is 0 unless it is given.
"""

import copy
import re
from dataclasses import dataclass, field
from pathlib import Path

from bench.course.chapters import notebook_of, required
from bench.errors import UserError
from bench.files import PROJECT

SETS = PROJECT / "tutorials" / "exercises"
NAME = re.compile(r"\d\d_[\w-]+")  # of a set: it becomes part of paths, commands and pages
TASK = re.compile(r"^#+\s+Task\s+(\d+)\b(.*)$", re.MULTILINE)
POINTS = re.compile(r"\((\d+(?:\.\d+)?)\s+points?\)")
REGION = r"^(?P<indent>[ \t]*)### BEGIN {0}\n(?P<inside>.*?)^[ \t]*### END {0}[ \t]*$"
SOLUTION = re.compile(REGION.format("SOLUTION"), re.DOTALL | re.MULTILINE)
HIDDEN = re.compile(REGION.format("HIDDEN TESTS"), re.DOTALL | re.MULTILINE)
RUBRIC = re.compile(r"^<!-- BEGIN RUBRIC -->\n(?P<inside>.*?)^<!-- END RUBRIC -->\n*", re.DOTALL | re.MULTILINE)
USES_KEY, MOST_KEY = re.compile(r"\bKEY\b"), 999
MARK = re.compile(r"(BEGIN|END) (SOLUTION|HIDDEN TESTS|RUBRIC)")
OBJECTIVE = re.compile(r"\s+\*\*Objective\.\*\* ([^*]+)\s\*\*Minutes:\*\*\s(\d+)\.\n")
CRITERION = re.compile(
    r"^- Test (\d+) \((\d+(?:\.\d+)?) points?\):\s+.+?\s+By\s+hand:\s+(.+?)(?=^- |\Z)", re.DOTALL | re.MULTILINE
)
PART = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s+for\b")  # of a test's points

# kind -> what nbgrader is told of such a cell
KINDS = {
    "text": {"grade": False, "solution": False, "locked": True},
    "given": {"grade": False, "solution": False, "locked": True},
    "answer": {"grade": False, "solution": True, "locked": False},
    "test": {"grade": True, "solution": False, "locked": True},
}

HOW_TO = """\
**How to work with this notebook.** Write your answers where the cells say so, and run the test cell below each answer:
it says what is wrong, or nothing. You may add cells. When you hand the notebook in, further tests are run that you do
not see, so make your answers right in general. The next cell is for hosted notebooks (Colab, Kaggle), where the package
must be installed first: upload the `.whl` file that came with this notebook, then run the cell. Elsewhere it does
nothing."""

TIME = """

The tasks are planned to take {minutes} minutes together. That is an estimate: no class has been timed."""

SET_UP = """\
try:
    from bench import course
except ImportError:  # the package is missing: install the uploaded file
    import glob, importlib, subprocess, sys
    places = [".", "..", "/content", "/kaggle/working", "/kaggle/input/**"]
    found = [name for place in places for name in glob.glob(f"{place}/data_parallel_bench-*.whl", recursive=True)]
    assert found, "upload the file data_parallel_bench-….whl that came with this notebook, then run this cell again"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", found[0]], check=True)
    importlib.invalidate_caches()"""


@dataclass(frozen=True)
class Criterion:
    """A line of a rubric. number: of the test cell in its task. parts: how a person divides its points."""

    number: int
    points: float
    parts: list[float]


@dataclass
class Task:
    """One task of a set. title: what its heading says after the points. tests: the ids of its test cells, each with its
    points."""

    number: int
    said: float | None  # the points that its heading names
    title: str = ""
    objective: str = ""
    minutes: int | None = None  # planned
    rubric: list[Criterion] | None = None  # one for each test cell
    kinds: set = field(default_factory=set)
    tests: dict[str, float] = field(default_factory=dict)

    @property
    def points(self) -> float:
        return sum(self.tests.values())


@dataclass(frozen=True)
class ProblemSet:
    """A set as the teacher has it. notebook: with solutions, hidden tests and rubrics."""

    name: str
    notebook: object
    tasks: list[Task]
    path: Path

    @property
    def points(self) -> float:
        return sum(task.points for task in self.tasks)

    @property
    def minutes(self) -> int | None:
        """Planned for all tasks; None when one of them does not say."""
        minutes = [task.minutes for task in self.tasks]
        return None if None in minutes else sum(minutes)


def sets(names: str | None = None, folder: Path | str | None = None) -> list[Path]:
    """The texts of all sets in a folder, or of those whose name begins with one of ``names``, "03,07".

    Raises UserError for a folder without sets and for a name that no set has.
    """
    folder = Path(folder) if folder else SETS
    found = sorted(path for path in folder.glob("[0-9][0-9]_*.md") if path.is_file())
    if odd := [path.name for path in found if not NAME.fullmatch(path.stem)]:
        raise UserError(f"{odd[0]!r} in {folder}: a set is called NN_name.md, of letters, digits, _ and -")
    if not found:
        raise UserError(f"no problem set NN_name.md in {folder}" + ("" if folder.is_dir() else ": it is not a folder"))
    wanted = [name.strip() for name in names.split(",")] if names else [""]
    for name in wanted:
        if not any(path.name.startswith(name) for path in found):
            raise UserError(f"no problem set begins with {name!r}: choose of {', '.join(path.stem for path in found)}")
    return [path for path in found if path.name.startswith(tuple(wanted))]


def read(path: Path, key: int = 0) -> ProblemSet:
    """A set from its text, with the KEY of its hidden tests. Raises UserError with the place when the text breaks the
    form."""
    if not 0 <= key <= MOST_KEY:
        raise UserError(f"KEY={key}: a whole number, at most {MOST_KEY}")
    notebook = notebook_of(path)
    tasks, count = [], {}
    if not notebook.cells or notebook.cells[0].cell_type != "markdown" or TASK.search(notebook.cells[0].source):
        raise UserError(f"{path.name}: a set begins with its title, then a given cell that imports; tasks follow")
    notebook.cells[1:1] = set_up_cells()
    for cell in notebook.cells:
        kind, points = kind_of(cell), cell.metadata.get("points")
        if kind == "text":
            tasks += [begun(path, heading, len(tasks) + 1) for heading in TASK.finditer(cell.source)]
        where = f"task{tasks[-1].number}" if tasks else "start"
        count[where, kind] = count.get((where, kind), 0) + 1
        number = f"-{count[where, kind]}" if count[where, kind] > 1 else ""
        cell.id = f"s{path.name[:2]}-{where}-{kind}{number}"
        if wrong := mistake(cell, kind, points, bool(tasks)):
            raise UserError(f"{path.name}: cell {cell.id}: {wrong}")
        cell.source = HIDDEN.sub(lambda region: keyed(region, key), cell.source)
        cell.metadata = {"nbgrader": {"schema_version": 3, "task": False, "grade_id": cell.id, **KINDS[kind]}}
        cell.metadata["nbgrader"]["cell_type"] = cell.cell_type
        if tasks:
            tasks[-1].kinds.add(kind)
        if kind == "test":
            cell.metadata["nbgrader"]["points"] = tasks[-1].tests[cell.id] = float(points)
    check(path, tasks)
    problem_set = ProblemSet(path.stem, required("nbformat").from_dict(notebook), tasks, path)
    if problem_set.minutes:
        problem_set.notebook.cells[1].source += TIME.format(minutes=problem_set.minutes)
    return problem_set


def keyed(region: re.Match, key: int) -> str:
    """A hidden region that begins with the value of KEY, where it uses the name."""
    if not USES_KEY.search(region["inside"]):
        return region[0]
    begin, rest = region[0].split("\n", 1)
    return f"{begin}\n{region['indent']}KEY = {key}\n{rest}"


def set_up_cells() -> list:
    """The cells that every set has: what to do, and the package where it is missing."""
    v4 = required("nbformat.v4")
    return [v4.new_markdown_cell(HOW_TO), v4.new_code_cell(SET_UP)]


def begun(path: Path, heading: re.Match, number: int) -> Task:
    """The task that a heading begins. Tasks are numbered from 1."""
    if int(heading[1]) != number:
        raise UserError(f"{path.name}: Task {heading[1]} is where Task {number} belongs")
    said = POINTS.search(heading[2])
    task = Task(number, float(said[1]) if said else None, heading[2][said.end() :].lstrip(": ") if said else "")
    if objective := OBJECTIVE.match(heading.string, heading.end()):
        task.objective, task.minutes = " ".join(objective[1].split()), int(objective[2])
    if rubric := RUBRIC.search(heading.string, heading.end()):
        task.rubric = [criterion(one) for one in CRITERION.finditer(rubric["inside"])]
    return task


def criterion(found: re.Match) -> Criterion:
    return Criterion(int(found[1]), float(found[2]), [float(n) for n in PART.findall(" ".join(found[3].split()))])


def kind_of(cell) -> str:
    """What a cell is, from its tags; "?" for tags that mean nothing."""
    if cell.cell_type == "markdown":
        return "text"
    tags = cell.metadata.get("tags", [])
    return {(): "given", ("answer",): "answer", ("test",): "test"}.get(tuple(tags), "?")


def mistake(cell, kind: str, points, in_a_task: bool) -> str | None:
    """What is wrong with a cell, in words; None when nothing is."""
    regions = {"answer": SOLUTION, "test": HIDDEN, "text": RUBRIC}
    rest = regions[kind].sub("", cell.source) if kind in regions else cell.source
    if kind == "?":
        return f"tags={cell.metadata['tags']}: a cell is given (no tag), an answer, or a test"
    if kind in ("answer", "test") and not in_a_task:
        return "it is before the first heading `Task 1 (… points)`"
    if kind == "test" and not (isinstance(points, int | float) and points > 0):
        return "a test needs points=…"
    if kind != "test" and points is not None:
        return "only a test has points"
    if kind == "answer" and not SOLUTION.search(cell.source):
        return "an answer needs ### BEGIN SOLUTION and ### END SOLUTION, each on a line of its own"
    if MARK.search(rest):
        return f"the mark {MARK.search(rest)[0]} is alone, or in a cell of the wrong kind"
    if cell.cell_type == "code" and USES_KEY.search(rest):
        return "KEY has a value in hidden tests alone"
    return None


def check(path: Path, tasks: list[Task]) -> None:
    """Raise UserError for a task that cannot be answered or graded, or whose heading names other points."""
    if not tasks:
        raise UserError(f"{path.name}: no heading `Task 1 (… points)`")
    for task in tasks:
        for kind in ("answer", "test"):
            if kind not in task.kinds:
                raise UserError(f"{path.name}: Task {task.number} has no {kind} cell")
        if task.said is None:
            raise UserError(f"{path.name}: the heading of Task {task.number} names no points: `Task 1 (2 points)`")
        if task.said != task.points:
            raise UserError(f"{path.name}: Task {task.number} says {task.said:g} points, its tests {task.points:g}")
        if task.rubric is not None and (wrong := wrong_rubric(task)):
            raise UserError(f"{path.name}: the rubric of Task {task.number} {wrong}")


def wrong_rubric(task: Task) -> str | None:
    """What is wrong with a rubric, in words; None when nothing is."""
    for number, points in enumerate(task.tests.values(), 1):
        one = task.rubric[number - 1] if number <= len(task.rubric) else None
        if one is None or (one.number, one.points) != (number, points):
            return f"needs, in this order, a line `- Test {number} ({points:g} points): … By hand: … for …`"
        if sum(one.parts) != points:
            return f"divides the {points:g} points of test {number} by hand into {sum(one.parts):g}"
    return "has more lines than the task has tests" if len(task.rubric) > len(task.tests) else None


def secrets_of(problem_set: ProblemSet) -> list[str]:
    """The lines that no student may see: of solutions, hidden tests and rubrics, where they occur nowhere else."""
    public, secret, patterns = set(), [], (SOLUTION, HIDDEN, RUBRIC)
    for cell in problem_set.notebook.cells:
        hidden = [region["inside"] for pattern in patterns for region in pattern.finditer(cell.source)]
        secret += [line.strip() for region in hidden for line in region.splitlines()]
        rest = RUBRIC.sub("", HIDDEN.sub("", SOLUTION.sub("", cell.source)))
        public |= {line.strip() for line in rest.splitlines()}
    return [line for line in secret if line and line not in public]


def without_solutions(text: str) -> str:
    """A problem set as a student reads it: no solutions, no hidden tests, no rubrics.

    >>> print(without_solutions("def f():\\n    ### BEGIN SOLUTION\\n    return 1\\n    ### END SOLUTION"))
    def f():
        raise NotImplementedError()
    """
    return RUBRIC.sub("", HIDDEN.sub("", SOLUTION.sub(r"\g<indent>raise NotImplementedError()", text)))


def without_rubrics(notebook):
    """A copy of a set's notebook: rubrics are for the teacher, and nbgrader would put them into the feedback."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        cell.source = RUBRIC.sub("", cell.source)
    return notebook
