"""The chapters from 14 on, executed."""

import pytest

from tests.notebooks.executed import assert_it_runs, each_of

pytest.importorskip("jupytext", reason="the notebooks extra is not installed")


@each_of(14, 99)
def test_it_runs_from_top_to_bottom(path, tmp_path, forked_python, monkeypatch):
    assert_it_runs(path, tmp_path, forked_python, monkeypatch)
