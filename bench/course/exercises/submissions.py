"""Submitted notebooks, and the notebook to grade: the original one with the student's answers.

No name from a student is used as a path, except the student's folder, whose name is checked.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.errors import UserError, as_unicode

STUDENT_NAME = re.compile(r"\w[\w .@+-]{0,99}")
MOST_BYTES = 20e6  # a notebook with many pictures has a few
# Unusual in an answer: a person should look at it. It costs no points, and a student can hide it.
NOTICED = {
    "the notebook's own machinery": r"\bget_ipython\b|\bIPython\b|\bipykernel\b|\bast_transformers\b|\b_ih\b|"
    r"\b(?:In|Out)\s*\[[^\],\n]*\]",
    "a command of the shell": r"^\s*!|^%%?[a-z]",
    "other programs": r"\bsubprocess\b|\bctypes\b|"
    r"\b(?:os\.|from os import [^\n]*\b)(?:system|popen|fork|kill|exec\w*|spawn\w*|posix_spawn\w*)\b",
    "code or objects of others": r"\b_getframe\b|\bimport (?:inspect|linecache|gc)\b|\bsettrace\b|\bsetprofile\b",
    "Python's own functions": r"\b__builtins__\b|\bbuiltins\b|\bglobals\(\)|\bsys\.modules\b|"
    r"(?<!__name__ == .)\b__main__\b",
    "objects that say what they equal": r"\b__eq__\b|\b__bool__\b",
    # Includes a KEY of the student's own: the hidden tests give it their value.
    "the graders' files": r"gradebook|nbgrader|\.ipynb\b|tutorials|course\.exercises|HIDDEN TESTS|\bKEY\b|\bdir_fd\b",
    "the network": r"\burllib\b|\bimport (?:[\w.]+, *)*requests\b|\bfrom requests[\w.]* import\b|"
    r"\bimport socket\b|\bhttps?://",
}
NOT_FOUND = "# This answer was not found in the notebook that was handed in."


class Unreadable(Exception):
    """A file is not a notebook, with the reason."""


@dataclass(frozen=True)
class Submission:
    """One notebook of one student. name: of the set. problem: why it cannot be read, or None."""

    student: str
    name: str
    path: Path | None
    problem: str | None = None


def find(folder: Path, names: Iterable[str]) -> tuple[list[Submission], list[str]]:
    """The submissions folder/STUDENT/NN_name.ipynb or folder/STUDENT/NN_name/NN_name.ipynb, and a message for each file
    that cannot be used.

    names: of the known sets. If any student has handed in a set, those who have not get an empty submission of it.
    Raises UserError when there is nothing to grade.
    """
    names = list(names)
    if not folder.is_dir():
        raise UserError(f"SUBMITTED={folder} is not a folder")
    students, messages = [], []
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "__")) or not path.is_dir():
            continue
        if path.is_symlink() or not STUDENT_NAME.fullmatch(path.name):
            messages.append(f"{str(path)!r}: not graded: a student's folder is no link and has a name of plain letters")
            continue
        students.append(path)
    found, twice = {}, set()
    for student in students:
        for path in sorted([*student.glob("*.ipynb"), *student.glob("*/*.ipynb")]):
            if path.parent.name.startswith("."):  # .ipynb_checkpoints
                continue
            if path.is_symlink() or path.parent.is_symlink():
                messages.append(f"{str(path)!r}: not graded: it is a link")
            elif path.stem not in names or path.parent.name not in (student.name, path.stem):
                messages.append(f"{str(path)!r}: no such problem set: choose of {', '.join(names)}")
            elif (student.name, path.stem) in found:
                twice.add((student.name, path.stem))
            else:
                found[student.name, path.stem] = path
    if not found:
        raise UserError(messages[0] if messages else f"no notebook in {folder}/STUDENT/NN_name.ipynb")
    submissions = []
    for student in students:
        for name in sorted({name for _, name in found}):
            key = student.name, name
            problem = "handed in twice, in both layouts" if key in twice else None if key in found else "not handed in"
            submissions.append(Submission(student.name, name, found.get(key), problem))
    return submissions, messages


def cells_of(path: Path) -> list[dict]:
    """The cells of a submitted notebook: "cell_type", "source", "id". Raises Unreadable.

    id: nbgrader's or, for programs that drop it, the cell's own, which is the same.
    """

    def get(value, key: str):
        return value.get(key) if isinstance(value, dict) else None

    if path.is_symlink() or not path.is_file():
        raise Unreadable("it is not a notebook: no plain file")
    if path.stat().st_size > MOST_BYTES:
        raise Unreadable(f"it is larger than {MOST_BYTES / 1e6:g} MB: clear its outputs")
    try:
        cells = []
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = cell["source"]
            source = as_unicode(source if isinstance(source, str) else "".join(source))
            name = get(get(cell.get("metadata"), "nbgrader"), "grade_id") or cell.get("id") or ""
            cells.append({"cell_type": str(cell["cell_type"]), "source": source, "id": str(name)})
        return cells
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        raise Unreadable(f"it is not a notebook: {type(error).__name__}") from None


def merged(release: str, handed_in: list[dict]) -> str:
    """The students' copy of a set (release) with a student's answers and added cells, as text.

    Other cells that the student has changed or deleted are the original ones. An added cell stays behind its
    predecessor; of an original cell that is there twice the first one counts. A missing answer becomes NOT_FOUND
    instead of the blank, because the answer may be in an added cell.
    """
    notebook = json.loads(release)
    known = {cell["id"]: cell for cell in notebook["cells"]}
    answers, added, behind = {}, {None: []}, None
    for cell in handed_in:
        name = cell["id"]
        if name in known and name not in added:
            behind = name
            added[name] = []
            if is_answer(known[name]):
                answers[name] = cell["source"]
        elif cell["cell_type"] in ("code", "markdown"):
            added[behind].append(cell)
    cells = []
    for name, cell in known.items():
        if is_answer(cell):
            cell["source"] = answers.get(name, NOT_FOUND)
        cells += [cell, *(new_cell(one, len(cells) + number) for number, one in enumerate(added.get(name, []), 1))]
    first = [new_cell(one, -number) for number, one in enumerate(added[None], 1)]
    notebook["cells"] = first + cells
    return json.dumps(notebook, indent=1, ensure_ascii=False)


def noticed(notebook: str) -> list[str]:
    cells = [cell for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]
    own = "\n".join("".join(cell["source"]) for cell in cells if is_answer(cell) or not cell["metadata"])
    return [what for what, pattern in NOTICED.items() if re.search(pattern, own, re.MULTILINE)]


def is_answer(cell: dict) -> bool:
    return bool(cell["metadata"].get("nbgrader", {}).get("solution"))


def new_cell(cell: dict, number: int) -> dict:
    made = {"cell_type": cell["cell_type"], "id": f"added-{number}", "metadata": {}, "source": cell["source"]}
    return made | ({"outputs": [], "execution_count": None} if cell["cell_type"] == "code" else {})
