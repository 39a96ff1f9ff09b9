"""The commands of the course: execute the chapters, release and grade the exercises, build the site, open Jupyter."""

from bench.record import PROJECT


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

    chapters.required("jupyterlab")
    environment = {**os.environ, "PYTHONPATH": chapters.pythonpath()}
    return subprocess.run([sys.executable, "-m", "jupyterlab", "--notebook-dir", str(PROJECT / "tutorials")],
                          env=environment).returncode  # fmt: skip
