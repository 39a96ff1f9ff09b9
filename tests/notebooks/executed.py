"""Pages executed at the small sizes, with real processes. Each is executed once, in test_run_*.py.

Every Python that a page starts, from its kernel to the ranks of torchrun, spawn and horovodrun, is a copy of one
process that has torch and what chapters import (tests/forked_python.py). The first chapter has fresh ones, as a reader
does; those of a notebook's ranks and commands are tested in test_ranks.py and test_commands.py.
"""

import sys

import pytest

from bench.course import chapters

pytest.importorskip("jupytext", reason="the notebooks extra is not installed")
CHAPTER_LIMIT_S = 900  # under two minutes on an idle machine; this one may be busy


def executing(paths):
    """A test that executes each of these from top to bottom, without an error and, if it is a chapter, with a figure.
    Afterwards it is known to be executed."""

    @pytest.mark.timeout(CHAPTER_LIMIT_S)
    @pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)
    def test(path, tmp_path, forked_python, monkeypatch):
        if path != chapters.chapters()[0]:
            monkeypatch.setattr(sys, "executable", forked_python)
        executed = chapters.read_notebook(chapters.execute(path, tmp_path, quick=True))
        outputs = [output for cell in chapters.code_cells(executed) for output in cell.outputs]
        assert outputs and not [output for output in outputs if output.output_type == "error"]
        data = [output.get("data", {}) for output in outputs]
        drawn = any({"image/png", "image/svg+xml"} & {*each} or "<svg" in each.get("text/html", "") for each in data)
        assert drawn or path not in chapters.chapters(), "no figure"
        assert chapters.is_current(path, quick=True, to=tmp_path) and not chapters.is_current(path, to=tmp_path)

    return test


def numbered(first: int, last: int):
    return [path for path in chapters.chapters() if first <= int(path.name[:2]) <= last]


def as_if_executed(path, folder, *outputs):
    """The notebook of a text as if each of its cells had had this output; None: none."""
    notebook = chapters.notebook_of(path)
    for number, (code, output) in enumerate(zip(chapters.code_cells(notebook), outputs, strict=True), 1):
        code.execution_count, code.outputs = number, [output] if output else []
    notebook.metadata["course"] = {"text": chapters.digest(path), "quick": False, "where": "a machine"}
    chapters.write(notebook, folder / f"{path.stem}.ipynb")
    return folder / f"{path.stem}.ipynb"
