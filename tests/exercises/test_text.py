"""From a problem set's text to the teacher's notebook: ids, points, and what is refused."""

import pytest

from bench.course.exercises import text
from tests.exercises.conftest import SAMPLE
from tests.runs import refuses

pytestmark = pytest.mark.quick
SOUND = (SAMPLE / "00_sample.md").read_text()


def test_every_cell_has_an_id_by_its_place_and_points_are_those_of_the_tests(sample):
    settings = [cell.metadata.nbgrader for cell in sample.notebook.cells]
    ids = [one.grade_id for one in settings]
    assert ids == [cell.id for cell in sample.notebook.cells] and len(set(ids)) == len(ids)
    assert [i for i in ids if "task2" in i] == [f"s00-task2-{k}" for k in ("text", "answer", "given", "test")]
    assert [task.points for task in sample.tasks] == [1, 2, 1] and sample.points == 4
    assert sample.tasks[1].tests == {"s00-task2-test": 2}
    assert all(one.solution != one.locked and one.schema_version == 3 for one in settings)  # answers may be changed
    assert sum(one.solution for one in settings) == sum(one.grade for one in settings) == 3


def test_a_task_has_objective_minutes_and_rubric(sample, tmp_path):
    """Or says nothing of them."""
    task = sample.tasks[1]
    assert task.objective == "You can give every rank the sum of all ranks' numbers." and task.minutes == 15
    (one,) = task.rubric
    assert (one.number, one.points, one.parts) == (1, 2, [1.5, 0.5])
    assert sample.minutes == 25 and "25 minutes" in sample.notebook.cells[1].source
    found = text.read(changed(tmp_path, text.RUBRIC.sub("", SOUND.replace("**Minutes:** 15.", ""))))
    assert found.minutes is None and found.tasks[0].minutes == 5 and found.tasks[0].rubric is None
    for heading, title in (("(2 points)", ""), ("(2 points): f(x): y", "f(x): y")):
        assert text.read(changed(tmp_path, SOUND.replace("(2 points)", heading, 1))).tasks[1].title == title


def changed(tmp_path, content: str):
    (tmp_path / "00_sample.md").write_text(content)
    return tmp_path / "00_sample.md"


TEST, ANSWER, RUBRIC = ' tags=["test"] points=2', 'python tags=["answer"]', "- Test 1 (2 points)"


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        ("(2 points)", "(3 points)", "Task 2, 3, 2"),
        ("(2 points)", "", "Task 2"),
        ("## Task 2", "## Task 4", "Task 4, Task 2"),
        (TEST, ' tags=["test"]', "s00-task2-test, points="),
        (TEST, ' tags=["test"] points=0', "s00-task2-test, points="),
        (TEST, "", "HIDDEN TESTS"),
        (ANSWER, 'python tags=["anwser"]', "s00-task1-"),
        (ANSWER, f"{ANSWER} points=1", "points"),
        (ANSWER, "python", "BEGIN SOLUTION"),
        ("    ### END SOLUTION\n", "", "### BEGIN SOLUTION, ### END SOLUTION"),
        ("### END HIDDEN TESTS\n", "", "BEGIN HIDDEN TESTS"),
        ("## Task 1 (1 point)", "", ""),
        ("assert global_batch(32, 2)", "assert KEY, global_batch(32, 2)", "KEY"),
        ("# Problem set 0: A sample", "## Task 1 (1 point)", ""),
        (RUBRIC, "- Test 1 (3 points)", f"Task 2, {RUBRIC}"),
        (RUBRIC, "- Test 2 (2 points)", f"Task 2, {RUBRIC}"),
        ("By hand: 1.5", "1.5", f"Task 2, {RUBRIC}"),
        ("0.5 for a number", "1 for a number", "Task 2, test 1, 2.5"),
        ("back.\n<!--", "back.\n- Test 2 (1 point): x. By hand: 1 for x.\n<!--", "Task 3"),
        ("<!-- END RUBRIC -->\n\nA value", "A value", "BEGIN RUBRIC"),
        ("```python\nfrom", "```python\n# BEGIN RUBRIC\nfrom", "BEGIN RUBRIC"),
        ("\nA value", "\n\udcff A value", "utf-8"),
        ("\n## Task 3", "\n## Task 3 (1 point)\n\nNothing follows.\n\n## Task 4", "Task 3"),
    ],
)
def test_a_text_that_breaks_the_form_is_refused_with_its_place(old, new, values, tmp_path):
    assert old in SOUND
    path = tmp_path / "00_sample.md"
    path.write_bytes(SOUND.replace(old, new, 1).encode(errors="surrogateescape"))
    with refuses("00_sample.md", *values.split(", ")):
        text.read(path)


def test_the_teacher_alone_reads_rubrics_and_secrets(sample):
    """What is in solutions and hidden tests alone."""
    secrets = text.secrets_of(sample)
    assert 'answers = {"times": 2}' in secrets and "dist.all_reduce(number)" in secrets
    assert "import torch.distributed as dist" not in secrets  # a given cell has this line, too
    assert "arguments; 0.5 for a number, not a tensor." in secrets
    assert any("BEGIN RUBRIC" in cell.source for cell in sample.notebook.cells)
    without = "\n".join(cell.source for cell in text.without_rubrics(sample.notebook).cells)
    for shown in (without, text.without_solutions(SOUND)):
        assert "By hand:" not in shown and "RUBRIC" not in shown
        assert "You can compute the global batch. **Minutes:** 5.\n\nThe images of one" in shown


def test_sets_are_found_by_the_beginning_of_their_name(tmp_path):
    for name in ("01_a.md", "03_b.md", "README.md"):
        (tmp_path / name).touch()
    assert [path.stem for path in text.sets(None, tmp_path)] == ["01_a", "03_b"]
    assert [path.stem for path in text.sets("03", tmp_path)] == ["03_b"]
    for names, folder, value in (("07", tmp_path, "01_a, 03_b"), (None, tmp_path / "nowhere", "nowhere")):
        with refuses(value):
            text.sets(names, folder)


def test_another_key_changes_hidden_tests_and_nothing_that_students_see():
    first, second = (text.read(SAMPLE / "00_sample.md", key).notebook.cells for key in (0, 432))
    changed = {a.id for a, b in zip(first, second, strict=True) if a.source != b.source}
    assert changed == {"s00-task1-test"}
    shown = [[text.without_solutions(cell.source) for cell in cells] for cells in (first, second)]
    assert shown[0] == shown[1] and "KEY" not in "".join(shown[0])
    (test,) = [cell.source for cell in second if cell.id in changed]
    exec(test, {"global_batch": lambda images, devices: images * devices})
    with pytest.raises(KeyError, match="439"):
        exec(test, {"global_batch": lambda *batch: {(32, 2): 64, (7, 3): 21}[batch]})
    for key in (-1, text.MOST_KEY + 1):
        with refuses(f"KEY={key}"):
            text.read(SAMPLE / "00_sample.md", key)
