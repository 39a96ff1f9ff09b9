"""The bank of questions and the exams: their form, and that each chapter has its questions."""

import re

import pytest

from bench.course import chapters
from bench.course.chapters import TUTORIALS

QUESTION = re.compile(
    r"^\*\*(\d+)\.(\d+)\*\* (.+)\n\n((?:- [a-d]\) .+\n){4})\n"
    r"<details><summary>Answer</summary>([a-d])\) (.+)</details>$",
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def bank():
    return (TUTORIALS / "questions.md").read_text()


def test_every_question_has_four_answers_a_right_one_and_a_reason(bank):
    found = QUESTION.findall(bank)
    assert len(found) == bank.count("<details>") == len(re.findall(r"^\*\*\d", bank, re.MULTILINE)) >= 80
    for _, _, _, answers, _, _ in found:
        assert re.findall(r"^- ([a-d])", answers, re.MULTILINE) == list("abcd")
        assert len(set(re.findall(r"\) (.+)", answers))) == 4


def test_the_right_answer_is_not_told_by_its_letter(bank):
    letters = [right for *_, right, _ in QUESTION.findall(bank)]
    assert all(letters.count(letter) > len(letters) / 6 for letter in "abcd")


def test_each_chapter_has_five(bank):
    numbers = [int(chapter) for chapter, *_ in QUESTION.findall(bank)]
    assert {n: numbers.count(n) for n in numbers} == {int(p.name[:2]): 5 for p in chapters.chapters()}


def test_each_exam_has_forty_points():
    for exam in re.split(r"^## ", (TUTORIALS / "exams.md").read_text(), flags=re.MULTILINE)[1:]:
        tasks = re.findall(r"^\*\*[AB]\d \((\d+) points\)", exam, re.MULTILINE)
        assert sum(map(int, tasks)) == 40 and exam.count("<summary>Rubric</summary>") == len(tasks)
