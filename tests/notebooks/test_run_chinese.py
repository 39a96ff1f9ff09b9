"""The pages that only the Chinese edition has, executed as chapters are."""

from bench.course import translation
from tests.notebooks.executed import executing

test_it_runs_from_top_to_bottom = executing(translation.own_chapters())
