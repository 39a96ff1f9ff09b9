"""For teachers: the problem sets released, graded, exported and checked."""

from bench.cli.base import CLONE, COURSE, EDITION, FROM_1, HOROVOD, NAME, Command, require_argument
from bench.config.flags import whole_number

SETS = {"--name": NAME, "--sets": {"metavar": "FOLDER", "help": "folder of the sets' Markdown [tutorials/exercises]"}}
KEY = {"--key": {"default": "0", "help": "your own number, which changes the values in hidden tests [0: as published]",
                 "read": whole_number(0)}}  # fmt: skip
LIMIT = {"--timeout": FROM_1 | {"metavar": "SECONDS", "default": "60",
                                "help": "limit of one cell; a notebook has five times this [60]"}}  # fmt: skip
CLONE_OR_SETS = ("sets",)


def out(folder: str) -> dict:
    return {"--out": {"metavar": "FOLDER", "help": f"folder to write [{folder}]"}}


def release(args) -> int:
    from bench.course.exercises import release

    return release.run(args.name, args.sets, args.out, args.edition)


def grade(args) -> int:
    from bench.course.exercises import grade

    submitted = require_argument("SUBMITTED", args.submitted)
    return grade.run(submitted, args.name, args.sets, args.out, float(args.timeout), args.key)


def export(args) -> int:
    from bench.course.exercises import release

    return release.export(require_argument("PLATFORM", args.platform), args.name, args.sets, args.out, args.key)


def check(args) -> int:
    from bench.course.exercises import grade

    return grade.check_solutions(args.name, args.sets, float(args.timeout), args.key)


RELEASE = Command("course release", "teach", "the students' copies of the problem sets, without solutions", "[NAME=03]",
                  run=release, needs=COURSE + CLONE, flags=SETS | out("build/release") | EDITION)  # fmt: skip
GRADE = Command(
    "course grade", "teach", "points and feedback for submissions", "SUBMITTED=folder [KEY=number]", run=grade,
    needs=HOROVOD + COURSE + CLONE_OR_SETS, flags=SETS | out("build/grades") | LIMIT | KEY, positional={
        "submitted": {"metavar": "SUBMITTED", "help": "folder with STUDENT/NN_name.ipynb, or nbgrader's "
                      "STUDENT/NN_name/NN_name.ipynb"},
    }, note="Exit code 2 when something could not be graded. Submissions are programs: use a container for strangers'.",
)  # fmt: skip
EXPORT = Command(
    "course export", "teach", "problem sets for Gradescope or GitHub Classroom", "PLATFORM=gradescope NAME=03",
    run=export, needs=COURSE + CLONE, flags=SETS | out("build/export/<PLATFORM>") | KEY, gone={"--to": "--platform"},
    positional={
        "platform": {"metavar": "PLATFORM", "help": "gradescope: a zip per set, with hidden tests; classroom: a folder "
                     "with a workflow that runs the visible tests"},
    },
)  # fmt: skip
CHECK = Command("course check", "teach", "does every solution score full points, and every blank zero?", "[NAME=03]",
                run=check, needs=HOROVOD + COURSE + CLONE_OR_SETS, flags=SETS | LIMIT | KEY)  # fmt: skip
COMMAND = Command("course", "teach", "problem sets: release, grade, export to other platforms, check the solutions",
                  parts=(RELEASE, GRADE, EXPORT, CHECK))  # fmt: skip
