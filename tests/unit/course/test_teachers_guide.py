"""The teacher's guide, the table of contents, the questions and the exams: their numbers are the records', their links
lead somewhere, and each chapter has its questions."""

import re

from bench.analysis.comparison import compare_suite
from bench.analysis.suite import suites_of
from bench.course import chapters
from bench.record.read import find_records
from tests.runs import ROOT
from tests.validation.pages.reference_page import is_claim

TUTORIALS = ROOT / "tutorials"
README = (TUTORIALS / "README.md").read_text()
QUESTION = re.compile(
    r"^\*\*(\d+)\.(\d+)\*\* (.+)\n\n((?:- [a-d]\) .+\n){4})\n"
    r"<details><summary>Answer</summary>([a-d])\) (.+)</details>$",
    re.MULTILINE,
)


def test_the_guides_numbers_are_those_of_the_committed_records():
    """The ratios of the comparison, and the memory of a worker in the example."""
    guide = " ".join((TUTORIALS / "teachers-guide.md").read_text().split())
    committed = find_records(ROOT / "results" / "reference")[0]
    (suite,) = [suite for suite in suites_of(committed) if is_claim(suite, "compare")]
    result = compare_suite(suite)
    said = re.findall(r"\d\.\d{3} \[\d\.\d{3}–\d\.\d{3}\]", guide)
    found = [result.pair(result.base, mode).comparison for mode in ("dp", "ddp", "horovod")]
    assert said == [f"{c.ratio:.3f} [{c.low:.3f}–{c.high:.3f}]" for c in found]
    assert f"n = {suite.n}" in guide
    (example,) = [r for r in committed if not r.label.suite and r.config.mode == "ddp" and r.num_devices == 4]
    took = [device["pss"] for device in example.peak_memory]
    assert f"{min(took):.2f} to {max(took):.2f} GiB" in guide


def test_links_lead_to_files_and_the_table_of_contents_names_every_chapter():
    for text in (README, (TUTORIALS / "teachers-guide.md").read_text()):
        assert [link for link in re.findall(r"\]\(([^)#:]+)\)", text) if not (TUTORIALS / link).exists()] == []
    assert sorted(re.findall(r"\((\d\d_\w+)\.md\)", README)) == sorted(path.stem for path in chapters.chapters())


def test_the_table_has_each_chapters_minutes_and_fourteen_core_chapters():
    rows = re.findall(r"^\| (\d+) \| .+? \| (core|elective) \| (\d+) \|", README, re.MULTILINE)
    core = [int(minutes) for _, kind, minutes in rows if kind == "core"]
    assert len(core) == 14 and sum(core) / 14 <= 32
    said = {path.name: re.search(r"\*\*Time:\*\*\s+(\d+)", path.read_text())[1] for path in chapters.chapters()}
    assert {(str(int(name[:2])), minutes) for name, minutes in said.items()} <= {(row[0], row[2]) for row in rows}


def test_the_reading_order_is_the_tables_and_unlisted_chapters_come_last(tmp_path):
    names = [path.name[:2] for path in chapters.chapters()]
    assert names.index("21") == names.index("05") + 1 and names.index("14") == names.index("08") + 1
    assert names.index("16") < names.index("13")
    for name in ("00_a", "01_b", "02_c"):
        (tmp_path / f"{name}.md").write_text("# A chapter\n")
    assert [path.stem for path in chapters.reading_order(tmp_path)] == ["00_a", "01_b", "02_c"]
    (tmp_path / "README.md").write_text(
        "[b](01_b.md), [no](09_no.md)\n\n| 2 | [C](02_c.md) | core |\n| 1 | [B](01_b.md) |\n"
    )
    assert [path.stem for path in chapters.reading_order(tmp_path)] == ["02_c", "01_b", "00_a"]


def test_the_plans_contain_what_they_must_and_the_readmes_name_the_short_path():
    """Each plan has every core chapter; four weeks have hangs, batch size, sharding and profiling."""
    rows = re.findall(r"^\| week \d+ \| (.*?) ?\| (.+?) \|$", README, re.MULTILINE)
    four, twelve = ({int(n) for row in rows for n in re.findall(r"\d+", row[column])} for column in (0, 1))
    core = {int(n) for n in re.findall(r"^\| (\d+) \| .+? \| core \|", README, re.MULTILINE)}
    assert core <= four and core <= twelve and {14, 15, 16, 21} <= four
    assert len([row for row in rows if row[0]]) == 4 and len(rows) == 12

    guide = (TUTORIALS / "teachers-guide.md").read_text()
    for column, heading in enumerate(("Four weeks", "A semester")):
        table = guide.partition(f"### {heading}")[2].partition("\n###")[0]
        lessons = re.findall(r"^\| \d+ \| (.+?) \| (.+?) \|", table, re.MULTILINE)
        weeks = [set(re.findall(r"\b\d+\b", " ".join(pair))) for pair in lessons]
        assert weeks == [set(re.findall(r"\d+", row[column])) for row in rows if row[column]]
    for text in (README, (ROOT / "README.md").read_text()):
        assert "0, 1, 3, 4, 5, 14, 16" in text


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
