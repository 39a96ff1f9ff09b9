"""The chapters from 14 on, executed."""

from tests.notebooks.executed import executing, numbered

test_it_runs_from_top_to_bottom = executing(numbered(14, 99))
