"""The pages that only the Chinese edition has, executed as chapters are."""

import json
import sys

import pytest

from bench.course import chapters, translation
from tests.notebooks.executed import CHAPTER_LIMIT_S

pytest.importorskip("jupytext", reason="the notebooks extra is not installed")


@pytest.mark.timeout(CHAPTER_LIMIT_S)
@pytest.mark.parametrize("path", translation.own_chapters(), ids=lambda path: path.stem)
def test_it_runs(path, tmp_path, forked_python, monkeypatch):
    monkeypatch.setattr(sys, "executable", forked_python)
    executed = chapters.execute(path, tmp_path, quick=True)
    outputs = [output for cell in json.loads(executed.read_text())["cells"] for output in cell.get("outputs", [])]
    assert outputs and not [output for output in outputs if output["output_type"] == "error"]
