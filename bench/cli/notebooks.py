"""The chapters: executed, or opened in JupyterLab."""

from bench.cli.base import CLONE, COURSE, EDITION, HOROVOD, NAME, Command
from bench.config.flags import SWITCH, whole_number
from bench.errors import UserError


def run(args) -> int:
    from bench.course import chapters

    if args.edition == "zh":
        from bench.course import chinese_notebooks

        if args.quick or args.pair or args.outputs:
            raise UserError("EDITION=zh executes nothing: leave QUICK, PAIR and OUTPUTS out")
        return chinese_notebooks.write_all(args.name)
    return chapters.run(args.name, bool(args.quick), bool(args.pair), bool(args.outputs))


def open_lab(args) -> int:
    """Run JupyterLab until it is stopped; returns its exit code."""
    import os
    import subprocess

    from bench.course import chapters
    from bench.course.shell import own_paths

    chapters.required("jupyterlab")
    if args.edition == "zh":
        from bench.course import chinese_notebooks

        chinese_notebooks.write_all(None, keep=True)  # people work in them
    # Not in our process tree: a program started with nohup in one of its terminals must survive it.
    return subprocess.run(words_of(args), env={**os.environ, **own_paths()}).returncode


def words_of(args) -> list[str]:
    """JupyterLab's command line. Arguments after -- are passed on."""
    import sys

    from bench.course import chapters
    from bench.files import PROJECT

    root, page = PROJECT / "tutorials", []
    if args.edition == "zh":  # the root is the clone, because links lead to its files
        root, page = PROJECT, [f"--LabApp.default_url=/lab/tree/{(chapters.BUILD / 'zh').relative_to(PROJECT)}"]
    words = [sys.executable, "-m", "jupyterlab", "--notebook-dir", str(root), *page]
    words += [f"--port={args.port}"] if args.port else []
    words += [f"--ip={args.ip}"] if args.ip else []
    words += ["--no-browser"] if args.browser is False else []
    return words + args.rest


OPEN = Command(
    "notebooks open", "learn", "open the chapters in JupyterLab", "[BROWSER=0 PORT=8889]", run=open_lab,
    needs=COURSE + CLONE, rest=True, flags={
        "--browser": SWITCH | {"help": "open a browser; 0 on a server [1]"},
        "--ip": {"help": "address to listen on; 0.0.0.0 for other machines [localhost]"},
        "--port": {"help": "port [8888, or the next free one]", "read": whole_number(1, 65535)},
        **EDITION,
    }, note="Other options of JupyterLab follow --: make jupyter ARGS='-- --debug'",
)  # fmt: skip
COMMAND = Command(
    "notebooks", "learn", "execute every chapter with real processes, into build/notebooks", "[NAME=03 QUICK=1]",
    run=run, needs=HOROVOD + COURSE + CLONE, parts=(OPEN,), flags={
        "--name": NAME,
        "--quick": SWITCH | {"help": "small sizes, as the tests use"},
        "--pair": SWITCH | {"help": "only make the notebooks from their Markdown"},
        "--outputs": SWITCH | {"help": "store the outputs in the committed notebooks"},
        **EDITION,
    }, note="EDITION=zh executes nothing. It writes notebooks with the outputs that exist to build/notebooks/zh.",
)  # fmt: skip
