"""The prose check finds what is in its list, in text and not in code."""

import json

import pytest

from tests.validation import prose

PAGE = "Start anew.\n\n```\nstart anew\n```\nSee `anew` and [a](anew.md).\n\nIt goes\non.\n"
MODULE = '"""Start anew."""\n\nanew = 1  # and anew\nTEXT = "not anew here"\n'


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("page.md", PAGE, [(1, "anew", "again"), (8, "goes on", "continue")]),
        ("module.py", MODULE, [(1, "anew", "again"), (3, "anew", "again")]),  # strings count only in bench
        ("notes.ipynb", json.dumps({"cells": [{"cell_type": "markdown", "source": ["Start\n", "anew"]},
                                              {"cell_type": "code", "source": ["anew"]}]}), [(2, "anew", "again")]),
    ],
)  # fmt: skip
def test_expressions_are_found_in_text_and_not_in_code(tmp_path, name, text, lines):
    (path := tmp_path / name).write_text(text)
    assert sorted(prose.hits(path)) == lines


def test_a_hit_is_exit_code_1(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(prose, "PROJECT", tmp_path)
    (page := tmp_path / "page.md").write_text("Start anew.\n")
    assert prose.main([str(page)]) == 1 and capsys.readouterr().out == "page.md:1: anew → again\n"
    page.write_text("Start again.\n")
    assert prose.main([str(page)]) == 0 and not capsys.readouterr().out


def test_words_per_sentence():
    text = "# Heading\n\nOne two three. Four five!\n\n| a | b |\n\n- six `seven` eight\n- nine\n\n```\ncode here\n```\n"
    assert prose.sentences(text) == [[3, 2], [3], [1]]
