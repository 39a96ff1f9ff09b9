"""A problem set's text -> the teacher's notebook. nbgrader knows each cell by an id that follows from its place.

The text is Markdown; each python fence is a cell of the kind that its tag says:

    ```python                            given: the student may not change it
    ```python tags=["answer"]            the student's, with a solution between two marks
    ```python tags=["test"] points=2     graded, all or nothing; its last part may be hidden

A heading "Task 2 (3 points)" starts a task, whose tests are worth three points together. Optional below it: the
objective and planned minutes, and a rubric for the teacher (points of each test, and how to divide them by hand):

    **Objective.** You can average gradients over ranks. **Minutes:** 15.

    <!-- BEGIN RUBRIC -->
    - Test 1 (3 points): the mean on every rank. By hand: 2 for the sum over the ranks; 1 for the division.
    <!-- END RUBRIC -->

A hidden region that uses the name KEY starts with its value: a number of the teacher's, 0 by default.
"""

import copy
import re
from dataclasses import dataclass, field
from pathlib import Path

from bench.course.chapters import notebook_of, required, select
from bench.errors import UserError
from bench.files import PROJECT

SETS = PROJECT / "tutorials" / "exercises"
NAME = re.compile(r"\d\d_[\w-]+")  # of a set: becomes part of paths, commands and pages
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

# kind of cell -> nbgrader's metadata
LOCKED = {"grade": False, "solution": False, "locked": True}
KINDS = {
    "text": LOCKED,
    "given": LOCKED,
    "answer": {"grade": False, "solution": True, "locked": False},
    "test": {"grade": True, "solution": False, "locked": True},
}


@dataclass(frozen=True)
class Criterion:
    """A line of a rubric. number: of the test cell in its task. parts: how a person divides its points."""

    number: int
    points: float
    parts: list[float]


@dataclass
class Task:
    """heading_points: points in its heading. title: its heading after the points. tests: test cell id -> points."""

    number: int
    heading_points: float | None
    title: str = ""
    objective: str = ""
    minutes: int | None = None  # planned
    rubric: list[Criterion] | None = None  # one per test cell
    kinds: set = field(default_factory=set)
    tests: dict[str, float] = field(default_factory=dict)

    @property
    def points(self) -> float:
        return sum(self.tests.values())


@dataclass(frozen=True)
class ProblemSet:
    name: str
    notebook: object
    tasks: list[Task]
    path: Path

    @property
    def points(self) -> float:
        return sum(task.points for task in self.tasks)

    @property
    def minutes(self) -> int | None:
        minutes = [task.minutes for task in self.tasks]
        return None if None in minutes else sum(minutes)


def sets(names: str | None = None, folder: Path | str | None = None) -> list[Path]:
    """The texts in a folder; names: as in ``select``. Raises UserError for a folder without sets."""
    folder = Path(folder) if folder else SETS
    found = sorted(path for path in folder.glob("[0-9][0-9]_*.md") if path.is_file())
    if odd := [path.name for path in found if not NAME.fullmatch(path.stem)]:
        raise UserError(f"{odd[0]!r} in {folder}: name problem sets NN_name.md, using letters, digits, _ and -")
    if not found:
        raise UserError(f"no problem set NN_name.md in {folder}" + ("" if folder.is_dir() else ": it is not a folder"))
    return select(found, names, "problem set")


def read(path: Path, key: int = 0) -> ProblemSet:
    """A set from its text. key: of its hidden tests. Raises UserError with the place of a mistake."""
    if not 0 <= key <= MOST_KEY:
        raise UserError(f"KEY={key}: write a whole number, at most {MOST_KEY}")
    notebook = notebook_of(path)
    tasks, count = [], {}
    if not notebook.cells or notebook.cells[0].cell_type != "markdown" or TASK.search(notebook.cells[0].source):
        raise UserError(
            f"{path.name}: a problem set starts with its title, then a cell with the imports, then the tasks"
        )
    v4 = required("nbformat.v4")
    notebook.cells[1:1] = [v4.new_markdown_cell(), v4.new_code_cell(render_template("set_up.py").strip())]

    def add_key(region: re.Match) -> str:
        if not USES_KEY.search(region["inside"]):
            return region[0]
        begin, rest = region[0].split("\n", 1)
        return f"{begin}\n{region['indent']}KEY = {key}\n{rest}"

    for cell in notebook.cells:
        tags, points = tuple(cell.metadata.get("tags", [])), cell.metadata.get("points")
        kind = {(): "given", ("answer",): "answer", ("test",): "test"}.get(tags, "?")
        if cell.cell_type == "markdown":
            kind = "text"
            for heading in TASK.finditer(cell.source):
                if int(heading[1]) != len(tasks) + 1:
                    raise UserError(f"{path.name}: Task {heading[1]} found, but Task {len(tasks) + 1} is expected")
                tasks.append(read_task(heading))
        where = f"task{tasks[-1].number}" if tasks else "start"
        count[where, kind] = count.get((where, kind), 0) + 1
        number = f"-{count[where, kind]}" if count[where, kind] > 1 else ""
        cell.id = f"s{path.name[:2]}-{where}-{kind}{number}"
        if wrong := cell_mistake(cell, kind, points, bool(tasks)):
            raise UserError(f"{path.name}: cell {cell.id}: {wrong}")
        cell.source = HIDDEN.sub(add_key, cell.source)
        cell.metadata = {"nbgrader": {"schema_version": 3, "task": False, "grade_id": cell.id, **KINDS[kind]}}
        cell.metadata["nbgrader"]["cell_type"] = cell.cell_type
        if tasks:
            tasks[-1].kinds.add(kind)
        if kind == "test":
            cell.metadata["nbgrader"]["points"] = tasks[-1].tests[cell.id] = float(points)
    if not tasks:
        raise UserError(f"{path.name}: no heading `Task 1 (… points)`")
    for task in tasks:
        if wrong := task_mistake(task):
            raise UserError(f"{path.name}: {wrong}")
    problem_set = ProblemSet(path.stem, required("nbformat").from_dict(notebook), tasks, path)
    introduction = render_template("introduction.md", minutes=problem_set.minutes)
    problem_set.notebook.cells[1].source = introduction.strip()
    return problem_set


def render_template(name: str, **words) -> str:
    import jinja2

    template = Path(__file__).with_name(f"{name}.j2").read_text()
    options = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "keep_trailing_newline": True}
    return jinja2.Template(template, **options).render(**words)


def read_task(heading: re.Match) -> Task:
    said = POINTS.search(heading[2])
    title = heading[2][said.end() :].lstrip(": ") if said else ""
    task = Task(int(heading[1]), float(said[1]) if said else None, title)
    if objective := OBJECTIVE.match(heading.string, heading.end()):
        task.objective, task.minutes = " ".join(objective[1].split()), int(objective[2])
    if rubric := RUBRIC.search(heading.string, heading.end()):
        task.rubric = [
            Criterion(int(one[1]), float(one[2]), [float(n) for n in PART.findall(" ".join(one[3].split()))])
            for one in CRITERION.finditer(rubric["inside"])
        ]
    return task


def cell_mistake(cell, kind: str, points, in_a_task: bool) -> str | None:
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
        return "an answer needs ### BEGIN SOLUTION and ### END SOLUTION, each on a separate line"
    if MARK.search(rest):
        return f"the mark {MARK.search(rest)[0]} is alone, or in a cell of the wrong kind"
    if cell.cell_type == "code" and USES_KEY.search(rest):
        return "KEY has a value only in hidden tests"
    return None


def task_mistake(task: Task) -> str | None:
    name = f"Task {task.number}"
    for kind in ("answer", "test"):
        if kind not in task.kinds:
            return f"{name} has no {kind} cell"
    if task.heading_points is None:
        return f"the heading of {name} has no points: `Task 1 (2 points)`"
    if task.heading_points != task.points:
        return f"{name} has {task.heading_points:g} points, its tests {task.points:g}"
    if task.rubric is None:
        return None
    for number, points in enumerate(task.tests.values(), 1):
        one = task.rubric[number - 1] if number <= len(task.rubric) else None
        if one is None or (one.number, one.points) != (number, points):
            line = f"`- Test {number} ({points:g} points): … By hand: … for …`"
            return f"the rubric of {name} needs, in this order, a line {line}"
        if sum(one.parts) != points:
            parts = f"the {points:g} points of test {number} by hand into {sum(one.parts):g}"
            return f"the rubric of {name} divides {parts}"
    if len(task.rubric) > len(task.tests):
        return f"the rubric of {name} has more lines than the task has tests"
    return None


def secrets_of(problem_set: ProblemSet) -> list[str]:
    """The lines that no student may see: of solutions, hidden tests and rubrics, if they occur nowhere else."""
    public, secret, patterns = set(), [], (SOLUTION, HIDDEN, RUBRIC)
    for cell in problem_set.notebook.cells:
        hidden = [region["inside"] for pattern in patterns for region in pattern.finditer(cell.source)]
        secret += [line.strip() for region in hidden for line in region.splitlines()]
        rest = RUBRIC.sub("", HIDDEN.sub("", SOLUTION.sub("", cell.source)))
        public |= {line.strip() for line in rest.splitlines()}
    return [line for line in secret if line and line not in public]


def without_solutions(text: str) -> str:
    """A set as students may read it: without solutions, hidden tests and rubrics."""
    return RUBRIC.sub("", HIDDEN.sub("", SOLUTION.sub(r"\g<indent>raise NotImplementedError()", text)))


def without_rubrics(notebook):
    """A copy without rubrics: nbgrader would put them into the feedback."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        cell.source = RUBRIC.sub("", cell.source)
    return notebook
