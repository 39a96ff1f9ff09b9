"""From a problem set's text to the teacher's notebook: ids, points, and what is refused."""

import pytest

from bench.course.exercises import text
from bench.errors import UserError
from tests.exercises.conftest import SAMPLE

pytestmark = pytest.mark.quick
SOUND = (SAMPLE / "00_sample.md").read_text()


def test_every_cell_has_an_id_by_its_place(sample):
    ids = [cell.metadata.nbgrader.grade_id for cell in sample.notebook.cells]
    assert ids == [cell.id for cell in sample.notebook.cells] and len(set(ids)) == len(ids)
    assert [i for i in ids if "task2" in i] == [f"s00-task2-{k}" for k in ("text", "answer", "given", "test")]


def test_points_are_those_of_the_tests(sample):
    assert [task.points for task in sample.tasks] == [1, 2, 1] and sample.points == 4
    assert sample.tasks[1].tests == {"s00-task2-test": 2}


def test_only_answers_may_be_changed(sample):
    settings = [cell.metadata.nbgrader for cell in sample.notebook.cells]
    assert all(one.solution != one.locked and one.schema_version == 3 for one in settings)
    assert sum(one.solution for one in settings) == sum(one.grade for one in settings) == 3


def test_secrets_are_what_is_in_solutions_and_hidden_tests_alone(sample):
    secrets = text.secrets_of(sample)
    assert 'answers = {"times": 2}' in secrets and "dist.all_reduce(number)" in secrets
    assert "import torch.distributed as dist" not in secrets  # a given cell has this line, too
    assert "arguments; 0.5 for a number, not a tensor." in secrets


def test_a_task_has_objective_minutes_and_rubric(sample):
    task = sample.tasks[1]
    assert task.objective == "You can give every rank the sum of all ranks' numbers." and task.minutes == 15
    (one,) = task.rubric
    assert (one.number, one.points, one.parts) == (1, 2, [1.5, 0.5])
    assert sample.minutes == 25 and "planned to take 25 minutes" in sample.notebook.cells[1].source


def test_a_set_may_say_nothing_of_them(tmp_path):
    path = tmp_path / "00_sample.md"
    path.write_text(text.RUBRIC.sub("", SOUND.replace("**Minutes:** 15.", "")))
    found = text.read(path)
    assert found.minutes is None and found.tasks[0].minutes == 5 and found.tasks[0].rubric is None
    assert "planned" not in found.notebook.cells[1].source


def test_the_teacher_alone_reads_rubrics(sample):
    def words(notebook):
        return "\n".join(cell.source for cell in notebook.cells)

    handed_out = [words(text.without_rubrics(sample.notebook)), text.without_solutions(SOUND)]
    assert "By hand:" in words(sample.notebook) and "BEGIN RUBRIC" in words(sample.notebook)
    for shown in handed_out:
        assert "By hand:" not in shown and "RUBRIC" not in shown
        assert "You can compute the global batch. **Minutes:** 5.\n\nThe images of one" in shown


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("(2 points)", "(3 points)", "Task 2 says 3 points, its tests 2"),
        ("(2 points)", "", "the heading of Task 2 names no points"),
        ("## Task 2", "## Task 4", "Task 4 is where Task 2 belongs"),
        (' tags=["test"] points=2', ' tags=["test"]', "cell s00-task2-test: a test needs points=…"),
        (' tags=["test"] points=2', ' tags=["test"] points=0', "a test needs points=…"),
        (' tags=["test"] points=2', "", "is alone, or in a cell of the wrong kind"),
        ('python tags=["answer"]', 'python tags=["anwser"]', "a cell is given (no tag), an answer, or a test"),
        ('python tags=["answer"]', 'python tags=["answer"] points=1', "only a test has points"),
        ('python tags=["answer"]', "python", "the mark BEGIN SOLUTION is alone, or in a cell of the wrong kind"),
        ("    ### END SOLUTION\n", "", "an answer needs ### BEGIN SOLUTION and ### END SOLUTION"),
        ("### END HIDDEN TESTS\n", "", "the mark BEGIN HIDDEN TESTS"),
        ("## Task 1 (1 point)", "", "it is before the first heading"),
        ("assert global_batch(32, 2)", "assert KEY, global_batch(32, 2)", "KEY has a value in hidden tests alone"),
        ("# Problem set 0: A sample", "## Task 1 (1 point)", "a set begins with its title"),
        (
            "- Test 1 (2 points)",
            "- Test 1 (3 points)",
            "the rubric of Task 2 needs, in this order, a line `- Test 1 (2",
        ),
        (
            "- Test 1 (2 points)",
            "- Test 2 (2 points)",
            "the rubric of Task 2 needs, in this order, a line `- Test 1 (2",
        ),
        ("By hand: 1.5", "1.5", "the rubric of Task 2 needs, in this order, a line `- Test 1 (2"),
        ("0.5 for a number", "1 for a number", "the rubric of Task 2 divides the 2 points of test 1 by hand into 2.5"),
        ("back.\n<!--", "back.\n- Test 2 (1 point): x. By hand: 1 for x.\n<!--", "more lines than the task has tests"),
        ("<!-- END RUBRIC -->\n\nA value", "A value", "the mark BEGIN RUBRIC is alone"),
        ("```python\nfrom", "```python\n# BEGIN RUBRIC\nfrom", "the mark BEGIN RUBRIC is alone, or in a cell of the"),
    ],
)
def test_a_text_that_breaks_the_form_is_refused_with_its_place(old, new, words, tmp_path):
    path = tmp_path / "00_sample.md"
    path.write_text(SOUND.replace(old, new, 1))
    with pytest.raises(UserError, match=r"00_sample\.md") as refused:
        text.read(path)
    assert words in str(refused.value)


@pytest.mark.parametrize(("heading", "title"), [("(2 points)", ""), ("(2 points): f(x): y", "f(x): y")])
def test_a_task_is_called_what_stands_after_its_points(heading, title, tmp_path):
    (path := tmp_path / "00_sample.md").write_text(SOUND.replace("(2 points)", heading, 1))
    assert text.read(path).tasks[1].title == title


def test_a_text_that_is_not_utf_8_is_refused(tmp_path):
    (path := tmp_path / "00_sample.md").write_bytes(SOUND.encode() + b"\xff")
    with pytest.raises(UserError, match=r"00_sample\.md cannot be read .*utf-8"):
        text.read(path)


def test_a_task_needs_an_answer_and_a_test(tmp_path):
    path = tmp_path / "00_sample.md"
    path.write_text(SOUND + "\n## Task 4 (1 point)\n\nNothing follows.\n")
    with pytest.raises(UserError, match="Task 4 has no answer cell"):
        text.read(path)


def test_sets_are_found_by_the_beginning_of_their_name(tmp_path):
    for name in ("01_a.md", "03_b.md", "README.md"):
        (tmp_path / name).touch()
    assert [path.stem for path in text.sets(None, tmp_path)] == ["01_a", "03_b"]
    assert [path.stem for path in text.sets("03", tmp_path)] == ["03_b"]
    with pytest.raises(UserError, match="no problem set begins with '07': choose of 01_a, 03_b"):
        text.sets("07", tmp_path)
    with pytest.raises(UserError, match="it is not a folder"):
        text.sets(None, tmp_path / "nowhere")


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


@pytest.mark.parametrize("key", [-1, text.MOST_KEY + 1])
def test_a_key_that_is_too_large_is_refused(key):
    with pytest.raises(UserError, match=f"KEY={key}: a whole number, at most"):
        text.read(SAMPLE / "00_sample.md", key)
