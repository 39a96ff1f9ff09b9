"""The chapters: Markdown texts ``tutorials/NN_name.md``, in which every python fence is a cell (jupytext).

The notebook beside each text is generated (`bench notebooks --pair`). It keeps the outputs of one full-size execution
(`bench notebooks --outputs`) as long as its code does not change. Executed notebooks are in ``build/notebooks``.
"""

import base64
import contextlib
import hashlib
import importlib.metadata
import io
import json
import os
import re
import sys
import time
import uuid
from pathlib import Path

from bench import files
from bench.course import translation
from bench.course.shell import own_paths
from bench.errors import RunFailed, UserError
from bench.files import PROJECT
from bench.measure import environment
from bench.process import tree

TUTORIALS = PROJECT / "tutorials"
BUILD = PROJECT / "build" / "notebooks"
FAILED = "failed: "  # starts the line in which an execution reports its error
CELL_LIMIT_S = 300  # cells are much faster unless the machine is very busy
START_LIMIT_S = 180  # of a kernel
# jsonschema would build a grammar of international addresses with this module: it takes a second and is not needed.
ADDRESSES = "rfc3987_syntax"
# Below a cell that is one expression, a text may show its picture for readers who do not run it:
# ``![caption](pictures/NAME.svg)``, drawn by `python -m tests.validation.renew`. The notebook has no such line.
PICTURE_LINE = re.compile(r"^!\[[^\]]+\]\((?P<file>[\w./-]*pictures/[\w-]+\.svg)\)\n\n?", re.MULTILINE)
TABLE_ROW = re.compile(
    r"^\|[^|\n]+\| *\[[^]\n]+\]\((\d\d_\w+\.md)\) *\|", re.MULTILINE
)  # | 3 | [Title](03_name.md) | … |
COLOURS, WIDTH = 32, 720  # at most, of a committed picture (width in pixels); 24 lose pale bands
MOST_BYTES = 350_000  # of a committed notebook


def chapters(names: str | None = None) -> list[Path]:
    """The texts in reading order; names: as in ``select``."""
    return select(reading_order(TUTORIALS), names, "chapter")


def with_own_chapters(names: str | None = None) -> list[Path]:
    """The chapters and those that only the Chinese edition has; names: as in ``select``."""
    return select([*chapters(), *translation.own_chapters()], names, "chapter")


def reading_order(folder: Path) -> list[Path]:
    """The texts of a folder in the order of the table in its README; those that it does not list come last."""
    texts = {path.name: path for path in sorted(folder.glob("[0-9][0-9]_*.md"))}
    readme = folder / "README.md"
    listed = TABLE_ROW.findall(readme.read_text(encoding="utf-8")) if readme.exists() else []
    return [texts[name] for name in dict.fromkeys([*listed, *texts]) if name in texts]


def select(paths: list[Path], names: str | None, kind: str) -> list[Path]:
    """The paths that start with one of ``names``, e.g. "03,07"; None: all. Raises UserError for an unknown name."""
    wanted = [name.strip() for name in names.split(",")] if names else [""]
    for name in wanted:
        if not any(path.name.startswith(name) for path in paths):
            raise UserError(f"no {kind} begins with {name!r}: choose from {', '.join(path.stem for path in paths)}")
    return [path for path in paths if path.name.startswith(tuple(wanted))]


# --- Texts and their committed notebooks ------------------------------------------------------------------------------


def without_pictures(text: str) -> str:
    return PICTURE_LINE.sub("", text)


def notebook_of(path: Path):
    """Without outputs and pictures; cell ids depend only on the order of the cells."""
    jupytext = required("jupytext")
    try:
        text = files.read_regular_file(path).decode()
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    notebook = jupytext.reads(without_pictures(text), fmt="md")
    for number, cell in enumerate(notebook.cells, 1):
        cell.id = f"cell-{number:02d}"
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def read_notebook(path: Path):
    return required("nbformat").read(path, 4)


def written(notebook) -> str:
    return required("nbformat").writes(notebook) + "\n"


def write(notebook, path: Path) -> None:
    write_text(path, written(notebook))


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically."""
    with files.atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def notebook_to_commit(path: Path):
    """The notebook to commit beside a text: with the outputs of the committed one if the code is the same."""
    notebook, committed = notebook_of(path), path.with_suffix(".ipynb")
    if committed.exists() and code_digest(old := read_notebook(committed)) == code_digest(notebook):
        take_outputs(old, notebook)
    return notebook


def write_notebooks(paths: list[Path]) -> None:
    for path in paths:
        write(notebook_to_commit(path), path.with_suffix(".ipynb"))


def take_outputs(executed, notebook) -> None:
    for cell, source in zip(code_cells(notebook), code_cells(executed), strict=True):
        cell.outputs, cell.execution_count = source.outputs, source.execution_count
    if "course" in executed.metadata:
        notebook.metadata["course"] = executed.metadata["course"]


def show_outputs(path: Path, executed: Path) -> None:
    """Write the outputs of an executed chapter, made smaller, to the committed notebook."""
    notebook, source = notebook_of(path), read_notebook(executed)
    for cell in source.cells:
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = without_own_folder(output["text"])
            for kind, data in output.get("data", {}).items():
                output["data"][kind] = reduce_colours(data) if kind == "image/png" else without_own_folder(data)
    take_outputs(source, notebook)
    notebook.metadata["course"].pop("text")  # it changes with every word
    write(notebook, path.with_suffix(".ipynb"))


def reduce_colours(png: str) -> str:
    from PIL import Image

    small = io.BytesIO()
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    picture.thumbnail((WIDTH, picture.height), Image.Resampling.LANCZOS)
    few = picture.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)  # keeps the marks' hues
    few.save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def without_own_folder(text: str) -> str:
    if not isinstance(text, str):
        return text
    for folder in (PROJECT, Path(sys.prefix).resolve(), Path(sys.base_prefix)):
        text = text.replace(f"{folder}/", "")
    return text.replace(str(PROJECT), ".")


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def code_digest(notebook) -> str:
    return hashlib.sha256("\0".join(cell.source for cell in code_cells(notebook)).encode()).hexdigest()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- Execution --------------------------------------------------------------------------------------------------------


def kernel_command() -> list[str]:
    """A kernel of this Python, whatever kernel specs the user has. Level 40 hides a warning about (local) TCP."""
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    return [*command, "--IPKernelApp.log_level=40"]


def kernel_sockets() -> dict[str, str]:
    """Settings of jupyter_client's KernelManager. By default it chooses free TCP ports before the kernel starts; when
    another process takes one in between, the kernel hangs. On Linux: Unix sockets in the abstract namespace, by a
    unique name."""
    return {"transport": "ipc", "ip": f"@kernel-{uuid.uuid4()}"} if files.LINUX else {}


def execute(path: Path, to: Path = BUILD, quick: bool = False) -> Path:
    """Run a chapter in a fresh kernel; returns its notebook. quick: at small sizes.

    Raises RunFailed with a cell's error; the notebook has the outputs up to it. No process is left, even after Ctrl-C.
    """
    to.mkdir(parents=True, exist_ok=True)
    executed = to / f"{path.stem}.ipynb"
    executed.write_text(written(notebook_of(path)))
    command = [sys.executable, "-m", "bench.course.chapters", str(executed.resolve()), str(path.parent)]
    command += [str(CELL_LIMIT_S), str(START_LIMIT_S)]
    required("nbclient")
    variables = {"COURSE_QUICK": str(int(quick)), **own_paths(), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    lines = []
    code = tree.run(command, on_line=lines.append, alone_s=tree.GRACE_S, env=os.environ | variables, tied=True)
    if code:
        lines = [line.strip() for line in lines if line.strip()]
        reasons = [line.removeprefix(FAILED) for line in lines if line.startswith(FAILED)] or lines
        reason = reasons[-1] if reasons else f"no error was printed; the exit code is {code}"
        raise RunFailed(f"{path.name}: {reason}; see {executed}")
    notebook = read_notebook(executed)
    notebook.metadata["course"] = {"text": digest(path), "quick": quick, "where": where()}
    write(notebook, executed)
    return executed


def execute_in_place(path: Path, folder: Path, cell_limit_s: int, start_limit_s: int) -> int:
    """``python -m bench.course.chapters NOTEBOOK FOLDER CELL_LIMIT_S START_LIMIT_S``: returns the exit code.

    A separate process, so that the caller can end it with everything below it. An error is one line that starts with
    FAILED; nbclient's exit handlers may print more lines after it.
    """
    nbclient = required("nbclient")
    exceptions = nbclient.exceptions
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    class Manager(AsyncKernelManager):
        kernel_spec = KernelSpec(argv=kernel_command(), display_name="Python 3", language="python")

    notebook = read_notebook(path)
    client = nbclient.NotebookClient(
        notebook, timeout=cell_limit_s, startup_timeout=start_limit_s, coalesce_streams=True,
        km=Manager(kernel_name="python3", **kernel_sockets()), resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    try:
        client.execute()
    except exceptions.CellExecutionError as error:
        reason = f"{error.ename}: {(error.evalue.splitlines() or [''])[0]}"
    except exceptions.CellTimeoutError:
        reason = f"a cell took longer than {cell_limit_s} s"
    except exceptions.DeadKernelError:
        reason = "the kernel died: out of memory, or a crash in a library"
    except RuntimeError as error:
        if "Kernel" not in str(error):
            raise
        reason = f"the kernel did not start within {start_limit_s} s: is this machine very busy?"
    else:
        return 0
    finally:
        path.write_text(written(notebook))
    print(f"{FAILED}{reason}", flush=True)
    return 1


def where() -> str:
    versions = []
    for package in ("torch", "horovod"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{package} {importlib.metadata.version(package).partition('+')[0]}")
    cores = environment.cores_in_words(environment.usable_cores())
    parts = [time.strftime("%Y-%m-%d"), environment.describe_machine()["cpu_model"], cores, *versions]
    return ", ".join(map(str, filter(None, parts)))


def is_current(path: Path, quick: bool = False, to: Path = BUILD) -> bool:
    """Whether the text as it is now has been executed to its end. quick: small sizes are enough."""
    with contextlib.suppress(OSError, json.JSONDecodeError, AttributeError):
        made = json.loads((to / f"{path.stem}.ipynb").read_text())["metadata"].get("course", {})
        return made.get("text") == digest(path) and (quick or not made["quick"])
    return False


def find_with_outputs(path: Path, quick: bool = False, to: Path = BUILD) -> Path | None:
    """The notebook with a text's outputs: executed here, or else the committed one; None if neither has them."""
    if is_current(path, quick, to):
        return to / f"{path.stem}.ipynb"
    committed = path.with_suffix(".ipynb")
    shows = committed.exists() and "course" in (notebook := read_notebook(committed)).metadata
    return committed if shows and code_digest(notebook) == code_digest(notebook_of(path)) else None


def find_or_execute(path: Path, quick: bool = False, to: Path = BUILD) -> Path:
    """As ``find_with_outputs``, but executes a text without outputs. Raises RunFailed as ``execute``."""
    found = find_with_outputs(path, quick, to)
    if found is None:
        started = time.monotonic()
        found = execute(path, to, quick)
        print(f"{time.monotonic() - started:6.1f} s  {path.stem}", flush=True)
    return found


def required(module: str, extra: str = "notebooks"):
    """Import a module of an extra. Raises UserError when it is missing."""
    sys.modules.setdefault(ADDRESSES, None)
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.import_module(module)
    raise UserError(f"{module} is not installed: run this through make, or `pip install -e '.[{extra}]'`")


def run(names: str | None, quick: bool, only_pair: bool, outputs: bool) -> int:
    """`bench notebooks`: pair, then execute every chapter. outputs: update the committed notebooks."""
    if outputs and (quick or only_pair):
        raise UserError("the committed outputs need the full sizes: use OUTPUTS=1 without QUICK and PAIR")
    wanted = with_own_chapters(names)
    write_notebooks(wanted)
    failed = False
    for path in [] if only_pair else wanted:
        started, reason = time.monotonic(), ""
        try:
            executed = execute(path, quick=quick)
            if outputs:
                show_outputs(path, executed)
        except RunFailed as error:
            executed, reason, failed = BUILD / f"{path.stem}.ipynb", f"  failed: {error}", True
        print(f"{time.monotonic() - started:6.1f} s  {executed.relative_to(PROJECT)}{reason}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(execute_in_place(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])))
