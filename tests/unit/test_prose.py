"""The prose check finds what is in its list: in every kind of text, and not in code."""

import json

import pytest

from tests import prose

PAGE = "Start anew.\n\n```\nstart anew\n```\nSee `anew` and [a](anew.md).\n\nIt goes\non.\n"
MODULE = '''"""Start anew."""

anew = 1  # and anew
HELP = {"help": "start anew [1]", "choices": ["anew"]}


def fail(path):
    """Raises ValueError, anew."""
    raise ValueError(f"{path} is "
                     "told the epoch")
'''
FOUND_IN_MODULE = [(1, "anew", "again"), (3, "anew", "again"), (4, "anew", "again"), (8, "anew", "again"),
                   (9, "is told", "gets; receives")]  # fmt: skip
CELLS = [{"cell_type": "markdown", "source": ["Start\n", "anew"]}, {"cell_type": "code", "source": ["anew"]}]
AGAIN = [(2, "anew", "again")]


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("page.md", PAGE, [(1, "anew", "again"), (8, "goes on", "continue")]),
        ("made.md", "\nanew\n<!-- begin: table -->\nanew\n<!-- end: table -->\n", AGAIN),  # checked where it is made
        ("module.py", MODULE, FOUND_IN_MODULE),
        ("tests/test_it.py", MODULE, [hit for hit in FOUND_IN_MODULE if hit[0] in (1, 3, 8)]),  # text and comments only
        ("notes.ipynb", json.dumps({"cells": CELLS}), AGAIN),
        ("page.html.j2", '<p class="anew">\nanew {{ anew }}</p><script>anew = 1\n</script>', AGAIN),
    ],
)
def test_expressions_are_found_in_text_and_not_in_code(tmp_path, monkeypatch, name, text, found):
    monkeypatch.setattr(prose, "PROJECT", tmp_path)
    (path := tmp_path / name).parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert sorted(prose.hits(path)) == found


@pytest.mark.parametrize(
    ("page", "line"),
    [("Start anew.\n", "page.md:1: anew → again"), ("One two " * 12 + ".\n", "page.md: 24 words, 24.0 per sentence")],
)
def test_a_hit_or_long_sentences_are_exit_code_1(tmp_path, capsys, monkeypatch, page, line):
    monkeypatch.setattr(prose, "PROJECT", tmp_path)
    (path := tmp_path / "page.md").write_text(page)
    assert prose.main([str(path)]) == 1 and capsys.readouterr().out.startswith(line)
    path.write_text("Start again.\n")
    assert prose.main([str(path)]) == 0 and "→" not in capsys.readouterr().out
