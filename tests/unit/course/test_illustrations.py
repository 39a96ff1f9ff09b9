"""The pictures in the chapters' texts: what the cell above each shows, drawn again."""

import pytest

from bench.course import chapters
from bench.course.chapters import TUTORIALS, without_pictures
from tests.validation.pages import illustrations


def test_they_are_as_their_cells_draw_them_each_line_has_its_cell_and_no_file_is_left_over():
    drawn = {path: text for chapter in chapters.chapters() for path, text in illustrations.drawn(chapter)}
    stale = [path.name for path, text in drawn.items() if not path.exists() or path.read_text() != text]
    assert drawn and not stale, "`python -m tests.validation.renew` draws them; a record's may be of an older record"
    assert {file for path in chapters.chapters() for file in illustrations.files_in(path)} == set(drawn)
    assert set((TUTORIALS / "pictures").glob("*")) <= set(drawn)


@pytest.mark.parametrize("file", ["pictures/turns.svg", "../results/reference/a-machine/weak-1/pictures/weak.svg"])
def test_a_notebook_has_the_cell_and_not_the_line(file):
    text = f"# T\n\n```python\ncourse.diagrams.turns()\n```\n\n![Turns]({file})\n\nIt goes on.\n"
    assert without_pictures(text) == "# T\n\n```python\ncourse.diagrams.turns()\n```\n\nIt goes on.\n"
