"""Chapters 0 to 6, executed; the others are in files beside, for other processes at the same time."""

import pytest

from tests.notebooks.executed import assert_it_runs, each_of

pytest.importorskip("jupytext", reason="the notebooks extra is not installed")


@each_of(0, 6)
def test_it_runs_from_top_to_bottom(path, tmp_path, forked_python, monkeypatch):
    assert_it_runs(path, tmp_path, forked_python, monkeypatch)
