"""The bank of questions and the exams: their form, and that each chapter has its questions."""

import re

from bench.course import chapters
from bench.course.chapters import TUTORIALS

QUESTION = re.compile(
    r"^\*\*(\d+)\.(\d+)\*\* (.+)\n\n((?:- [a-d]\) .+\n){4})\n"
    r"<details><summary>Answer</summary>([a-d])\) (.+)</details>$",
    re.MULTILINE,
)


def test_every_chapter_has_five_questions_with_four_answers_a_right_one_and_a_reason():
    """And the right answer is not told by its letter."""
    bank = (TUTORIALS / "questions.md").read_text()
    found = QUESTION.findall(bank)
    assert len(found) == bank.count("<details>") == len(re.findall(r"^\*\*\d", bank, re.MULTILINE)) >= 80
    for _, _, _, answers, _, _ in found:
        assert re.findall(r"^- ([a-d])", answers, re.MULTILINE) == list("abcd")
        assert len(set(re.findall(r"\) (.+)", answers))) == 4
    letters, numbers = [right for *_, right, _ in found], [int(chapter) for chapter, *_ in found]
    assert all(letters.count(letter) > len(letters) / 6 for letter in "abcd")
    assert {n: numbers.count(n) for n in numbers} == {int(p.name[:2]): 5 for p in chapters.chapters()}


def test_each_exam_has_forty_points():
    for exam in re.split(r"^## ", (TUTORIALS / "exams.md").read_text(), flags=re.MULTILINE)[1:]:
        tasks = re.findall(r"^\*\*[AB]\d \((\d+) points\)", exam, re.MULTILINE)
        assert sum(map(int, tasks)) == 40 and exam.count("<summary>Rubric</summary>") == len(tasks)
