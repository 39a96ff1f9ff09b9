"""CONTRIBUTING.md's two journeys through the code, and what the house promises, so that neither rots."""

import re
import subprocess

from tests.runs import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
STEP = re.compile(r"^\d+\. \[`[\w./]+`\]\((?P<file>[\w./]+)\)(?: `(?P<name>\w+)`)?", re.MULTILINE)


def journey(title: str) -> str:
    """The section with this heading."""
    return TEXT.partition(f"### {title}")[2].partition("\n### ")[0].partition("\n## ")[0]


def test_each_step_of_a_journey_is_there():
    for title in ("A run, from top to bottom", "A comparison"):
        steps = list(STEP.finditer(journey(title)))
        assert len(steps) == len(re.findall(r"^\d+\. ", journey(title), re.MULTILINE)) > 8
        assert len(journey(title).splitlines()) <= 40
        for step in steps:
            source = (ROOT / step["file"]).read_text()
            assert not step["name"] or re.search(rf"^(?:def|class) {step['name']}\b", source, re.MULTILINE), step[0]


def test_each_name_in_a_journey_is_in_one_of_its_files():
    for title in ("A run, from top to bottom", "A comparison"):
        text = journey(title)
        files = re.findall(r"(?:bench/[\w/]+\.py|Makefile)", text)
        sources = "\n".join((ROOT / file).read_text() for file in files)
        for name in re.findall(r"`(\w+)`", text):
            assert re.search(rf"\b{name}\b", sources), name


def test_the_table_of_floors_is_the_one_that_lint_checks():
    (layers,) = re.findall(r"^layers = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    floors = [set(re.findall(r"\w+", line)) for line in layers.strip().splitlines()]
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", TEXT.partition("## The layout")[2], re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(len(floors), 0, -1))
    for (_, text), floor in zip(rows, floors, strict=True):
        assert floor <= set(re.findall(r"`(\w+)`", text)), text


def test_a_plain_run_is_read_in_fifteen_files():
    assert len({step["file"] for step in STEP.finditer(journey("A run, from top to bottom"))}) <= 15


def test_a_record_has_one_definition_and_a_process_tree_one_mark():
    files = subprocess.run(["git", "ls-files", "bench"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    files = files or [str(path.relative_to(ROOT)) for path in (ROOT / "bench").rglob("*") if path.is_file()]
    assert not [name for name in files if name.endswith(".schema.json")]
    sources = {name: (ROOT / name).read_text() for name in files if name.endswith(".py") and (ROOT / name).exists()}
    structs = [name for name, text in sources.items() if re.search(r"\(.*\bStruct\b", text)]
    marks = [name for name, text in sources.items() if re.search(r"^\w*MARKS? = \"BENCH_", text, re.MULTILINE)]
    assert structs == ["bench/record/definition.py"] and marks == ["bench/process/tree.py"]
