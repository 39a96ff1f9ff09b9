"""What students have handed in, and the notebook that is graded: the original one with their answers put in.

Nothing that a student has named is used as a path but the folder of the student, whose name is checked.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.errors import UserError, as_unicode

STUDENT_NAME = re.compile(r"\w[\w .@+-]{0,99}")
MOST_BYTES = 20e6  # a notebook with many pictures has a few
# What is no part of an answer: a person should look at it. It costs no points, and who wants to hide it can.
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
    # A KEY of the student's own is among them: the hidden tests give it their value.
    "the graders' files": r"gradebook|nbgrader|\.ipynb\b|tutorials|course\.exercises|HIDDEN TESTS|\bKEY\b|\bdir_fd\b",
    "the network": r"\burllib\b|\bimport (?:[\w.]+, *)*requests\b|\bfrom requests[\w.]* import\b|"
    r"\bimport socket\b|\bhttps?://",
}
NOT_FOUND = "# This answer was not found in the notebook that was handed in."


class Unreadable(Exception):
    """A file that is no notebook; the message says why."""


@dataclass(frozen=True)
class Submission:
    """One notebook of one student. problem: why it cannot be read, in words; None when it can."""

    student: str
    name: str  # of the set
    path: Path | None
    problem: str | None = None


def find(folder: Path, names: Iterable[str]) -> tuple[list[Submission], list[str]]:
    """What is in folder/STUDENT/NN_name.ipynb or folder/STUDENT/NN_name/NN_name.ipynb, and what cannot be used.

    names: of the known sets. A student who has handed in nothing of a set that another has handed in has an empty
    submission of it. Raises UserError when there is nothing at all to grade.
    """
    names = list(names)
    if not folder.is_dir():
        raise UserError(f"SUBMITTED={folder} is not a folder")
    students, said = [], []
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "__")) or not path.is_dir():
            continue
        if path.is_symlink() or not STUDENT_NAME.fullmatch(path.name):
            said.append(f"{str(path)!r}: not graded: a student's folder is no link and has a name of plain letters")
            continue
        students.append(path)
    found, problems = {}, []
    for student in students:
        for path in sorted([*student.glob("*.ipynb"), *student.glob("*/*.ipynb")]):
            if path.parent.name.startswith("."):  # .ipynb_checkpoints
                continue
            if path.is_symlink() or path.parent.is_symlink():
                said.append(f"{str(path)!r}: not graded: it is a link")
            elif path.stem not in names or path.parent.name not in (student.name, path.stem):
                said.append(f"{str(path)!r}: no such problem set: choose of {', '.join(names)}")
            elif (student.name, path.stem) in found:
                problems.append((student.name, path.stem))
            else:
                found[student.name, path.stem] = path
    if not found:
        raise UserError(said[0] if said else f"no notebook in {folder}/STUDENT/NN_name.ipynb")
    handed_in = sorted({name for _, name in found})
    submissions = []
    for student in students:
        for name in handed_in:
            path = found.get((student.name, name))
            problem = None if path else "not handed in"
            if (student.name, name) in problems:
                problem = "handed in twice, in both layouts"
            submissions.append(Submission(student.name, name, path, problem))
    return submissions, said


def cells_of(path: Path) -> list[dict]:
    """The cells of a notebook that was handed in: "cell_type", "source", "id".

    id: nbgrader's, which is also the name of the cell, so that it is known where a program has dropped nbgrader's.
    Raises Unreadable.
    """
    if path.is_symlink() or not path.is_file():
        raise Unreadable("it is not a notebook: no plain file")
    if path.stat().st_size > MOST_BYTES:
        raise Unreadable(f"it is larger than {MOST_BYTES / 1e6:g} MB: clear its outputs")
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        return [plain(cell) for cell in notebook["cells"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        raise Unreadable(f"it is not a notebook: {type(error).__name__}") from None


def plain(cell: dict) -> dict:
    """What is needed of a cell."""
    source = cell["source"]
    source = source if isinstance(source, str) else "".join(source)
    source = as_unicode(source)  # half a character, as "\\ud800", fits into no file
    name = inner(inner(cell.get("metadata"), "nbgrader"), "grade_id") or cell.get("id") or ""
    return {"cell_type": str(cell["cell_type"]), "source": source, "id": str(name)}


def inner(value, key: str):
    """What a dict has under a key; None where it is no dict, as another program may have left it."""
    return value.get(key) if isinstance(value, dict) else None


def merged(release: str, handed_in: list[dict]) -> str:
    """The students' copy of a set, as text, with the answers and the further cells of a student put in.

    release: the students' copy, as text. Cells that the student has changed without being asked to, or deleted, are
    those of the release again. A cell that the student has added stays behind the cell that it was behind; one of
    the release that is there twice counts where it is first. An answer cell that is missing is left out, and not made
    blank: the answer may be in a cell that the student has added.
    """
    notebook = json.loads(release)
    known = {cell["id"]: cell for cell in notebook["cells"]}
    answers, added, behind = {}, {None: []}, None
    for cell in handed_in:
        name = cell["id"]
        if name in known and name not in answers and name not in added:
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
        cells += [cell, *(fresh(one, len(cells) + number) for number, one in enumerate(added.get(name, []), 1))]
    first = [fresh(one, -number) for number, one in enumerate(added[None], 1)]
    notebook["cells"] = first + cells
    return json.dumps(notebook, indent=1, ensure_ascii=False)


def noticed(notebook: str) -> list[str]:
    """What a person should look at in the code of a student, in a notebook that ``merged`` has made."""
    cells = [cell for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]
    own = "\n".join("".join(cell["source"]) for cell in cells if is_answer(cell) or not cell["metadata"])
    return [what for what, pattern in NOTICED.items() if re.search(pattern, own, re.MULTILINE)]


def is_answer(cell: dict) -> bool:
    return bool(cell["metadata"].get("nbgrader", {}).get("solution"))


def fresh(cell: dict, number: int) -> dict:
    """A cell that a student has added: its text, and nothing that it says of itself."""
    made = {"cell_type": cell["cell_type"], "id": f"added-{number}", "metadata": {}, "source": cell["source"]}
    return made | ({"outputs": [], "execution_count": None} if cell["cell_type"] == "code" else {})
