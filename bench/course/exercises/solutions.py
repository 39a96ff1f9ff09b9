"""`bench solutions-check`: every set's solution scores full, and its blank zero in every test; by nbgrader."""

import time

from bench.course.exercises import grade, nbgrading, release, submissions, text
from bench.course.exercises.nbgrading import NotGraded
from bench.errors import ExitCode


def run(names: str | None, folder: str | None, cell_limit_s: float, key: int = 0) -> int:
    """The command. Returns the exit code: 1 when a set does not hold. key: of hidden tests."""
    problem_sets = [text.read(path, key) for path in text.sets(names, folder)]
    nbgrading.required()
    broken = 0
    print(f"{'set':30} {'points':>6}  {'solved':>6}  {'blank':>6}")
    course = nbgrading.make_release(problem_sets)
    for problem_set in problem_sets:
        started = time.monotonic()
        blank = course.releases[problem_set.name]
        release.check(problem_set, blank)
        answered = solved(problem_set, blank)
        found, wrong = [], []
        for notebook, full in ((answered, True), (blank, False)):
            try:
                graded = grade.grade_text(course, problem_set, notebook, cell_limit_s)
                found.append(f"{graded.points:g}")
                wrong += wrong_tasks(graded, full)
            except NotGraded as error:
                found.append("–")
                wrong.append(str(error))
        broken += bool(wrong)
        seconds = f"{time.monotonic() - started:.0f} s"
        row = f"{problem_set.name:30} {problem_set.points:6g}  {found[0]:>6}  {found[1]:>6}  {seconds:>6}"
        print(row, "; ".join(wrong), flush=True)
    return ExitCode.FAILED if broken else ExitCode.DONE


def solved(problem_set: text.ProblemSet, blank: str) -> str:
    """The students' copy with the solutions in it."""
    cells = [{"cell_type": cell.cell_type, "source": cell.source, "id": cell.id} for cell in problem_set.notebook.cells]
    return submissions.merged(blank, cells)


def wrong_tasks(graded: grade.Grade, full: bool) -> list[str]:
    """What is not as it should be, in words. A blank scores zero in every test, so in every task."""
    kind = "the solution" if full else "the blank"
    return [f"Task {task.number}: {kind} scores {graded.tasks[task.number]:g} of {task.points:g}"
            for task in graded.problem_set.tasks
            if graded.tasks[task.number] != (task.points if full else 0)]  # fmt: skip
