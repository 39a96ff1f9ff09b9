"""Chapters 7 to 13, executed; the others are in files beside, for other processes at the same time."""

from tests.notebooks.executed import executing, numbered

test_it_runs_from_top_to_bottom = executing(numbered(7, 13))
