"""The commands of the course: execute the chapters, release and grade the exercises, build the site, open Jupyter."""

from bench.record.write import PROJECT


def add(commands) -> None:
    """Add the commands to the command line. commands: what argparse's ``add_subparsers`` returns."""
    text = "execute every chapter of the course with real processes, into build/notebooks"
    sub = commands.add_parser("notebooks", help=text, description=text)
    sub.add_argument("--name", metavar="NAME", help="only chapters whose name begins so: 03, or 03,07")
    sub.add_argument("--quick", metavar="QUICK", nargs="?", const="1", help="at the small sizes that a test uses")
    sub.add_argument("--pair", action="store_true", help="only make the notebooks from their texts")
    sub.set_defaults(command=notebooks)
    text = "the course as a site, in build/site; executes the chapters that have changed since they were executed"
    sub = commands.add_parser("site", help=text, description=text)
    sub.add_argument("--quick", metavar="QUICK", nargs="?", const="1", help="chapters at the small sizes will do")
    sub.set_defaults(command=site)
    sub = commands.add_parser("jupyter", help="open the chapters in JupyterLab")
    sub.set_defaults(command=jupyter)
    add_exercises(commands)


def add_exercises(commands) -> None:
    """The commands of the problem sets."""
    text = "make the students' copies of the problem sets, and all that they need, in build/release"
    release_ = commands.add_parser("release", help=text, description=text)
    text = "grade what students have handed in: points and feedback, in build/grades"
    note = "exit code 2 when something could not be graded. Answers are programs: grade strangers' work in a container"
    grade_ = commands.add_parser("grade", help=text, description=text, epilog=note)
    grade_.add_argument("submitted", metavar="SUBMITTED", help="folder with STUDENT/NN_name.ipynb below it, or "
                        "nbgrader's STUDENT/NN_name/NN_name.ipynb")  # fmt: skip
    text = "show that every problem set's solution scores full and its blank zero"
    check = commands.add_parser("solutions-check", help=text, description=text)
    for sub, command in ((release_, release), (grade_, grade), (check, solutions_check)):
        sub.add_argument("--name", metavar="NAME", help="only sets whose name begins so: 03, or 03,07")
        sub.add_argument("--sets", metavar="FOLDER", help="the sets' texts [tutorials/exercises]")
        sub.set_defaults(command=command)
    for sub, place in ((release_, "build/release"), (grade_, "build/grades")):
        sub.add_argument("--out", metavar="OUT", help=f"where to [{place}]")
    for sub in (grade_, check):
        sub.add_argument("--timeout", metavar="SECONDS", default="60", help="limit of one cell; five times this for a "
                         "whole notebook [60]")  # fmt: skip


def notebooks(args) -> int:
    """The chapters, executed."""
    from bench.cli import is_on
    from bench.course import chapters

    return chapters.run(args.name, is_on("QUICK", args.quick), args.pair)


def site(args) -> int:
    """The pages."""
    from bench.cli import is_on
    from bench.course import site as pages

    print(f"site: {pages.build(is_on('QUICK', args.quick))}")
    return 0


def jupyter(args) -> int:
    """JupyterLab in the folder of the chapters, until it is stopped."""
    import os
    import subprocess
    import sys

    from bench.course import chapters
    from bench.course import shell as commands

    chapters.required("jupyterlab")
    environment = {**os.environ, **commands.own_paths()}
    return subprocess.run([sys.executable, "-m", "jupyterlab", "--notebook-dir", str(PROJECT / "tutorials")],
                          env=environment).returncode  # fmt: skip


def release(args) -> int:
    """The students' copies."""
    from bench.course.exercises import release

    return release.run(args.name, args.sets, args.out)


def grade(args) -> int:
    """Points and feedback."""
    from bench.course.exercises import grade

    return grade.run(args.submitted, args.name, args.sets, args.out, seconds(args.timeout))


def solutions_check(args) -> int:
    """Solutions score full, blanks zero."""
    from bench.course.exercises import solutions

    return solutions.run(args.name, args.sets, seconds(args.timeout))


def seconds(text: str) -> float:
    """The limit of a cell. Raises UserError for anything but a whole number of seconds."""
    from bench.cli import whole

    return float(whole("TIMEOUT", text, at_least=1))
