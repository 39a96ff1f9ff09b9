"""The reader's guesses: a variable in the notebook, a box on the page that remembers it."""

import html
import re
from collections.abc import Callable

MIME = "application/vnd.course.guess+json"  # of an output: {"name": …, "measured": …}
ASKED = re.compile(r"^(?P<name>\w+) = None\b(?:[^\S\n]*#[^\S\n]*(?P<question>.*))?$", re.MULTILINE)
SECTION = "A prediction"  # the heading of the cells that ask
CELL = re.compile(r"^```python[^\n]*\n(?P<code>.*?)\n```$", re.MULTILINE | re.DOTALL)  # of a chapter's text


def compare_guess(text: str, measured: float, **guess: float | None) -> None:
    """Print a measured value, and the reader's guess if there is one.

    text: the line to print, with the value. guess: one variable by its name, which is the one that the page's box
    remembers.

    >>> compare_guess("sent per rank: 150 MB", 150, guess_mb=None)
    sent per rank: 150 MB
    >>> compare_guess("sent per rank: 150 MB", 150, guess_mb=100)
    sent per rank: 150 MB   your guess: 100
    """
    from bench.course.ranks import ipython

    ((name, guessed),) = guess.items()
    said = text if guessed is None else f"{text}   your guess: {guessed}"
    if ipython() is None:
        print(said)
        return
    from IPython.display import display

    display({"text/plain": said, MIME: {"name": name, "measured": float(measured)}}, raw=True)


def questions(notebook) -> dict[str, str]:
    """The guesses that a chapter asks for: name -> question."""
    asked = {}
    for cell in cells_of_section(notebook):
        asked |= {match["name"]: question(match["question"] or "") for match in ASKED.finditer(cell.source)}
    return asked


def find_questions(text: str) -> list[str]:
    """The questions of the guesses in a chapter's text.

    >>> find_questions("## A prediction\\n\\n```python\\nguess = None  # your number: MB\\n```\\n\\n## Then\\n")
    ['MB']
    """
    asked, inside = [], False
    for found in re.finditer(rf"{CELL.pattern}|^## (?P<heading>[^\n]+)$", text, CELL.flags):
        if found["heading"]:
            inside = found["heading"].strip() == SECTION
        elif inside:
            asked += [question(match["question"] or "") for match in ASKED.finditer(found["code"])]
    return [each for each in asked if each]


def cells_of_section(notebook) -> list:
    found, inside = [], False
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for heading in re.findall(r"^## (.+)$", cell.source, re.MULTILINE):
                inside = heading.strip() == SECTION
        elif inside and ASKED.search(cell.source):
            found.append(cell)
    return found


def question(comment: str) -> str:
    """
    >>> question("your number: MB that each of the four sends"), question("your number")
    ('MB that each of the four sends', '')
    """
    return re.sub(r"^your number:?\s*", "", comment.strip())


def answers(notebook) -> dict[str, float]:
    """The measured values among the outputs: name -> value."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    found = [output["data"][MIME] for output in outputs if MIME in output.get("data", {})]
    return {each["name"]: each["measured"] for each in found}


def box(chapter: str, name: str, asked: str, say: Callable[[str], str] = str) -> str:
    label = html.escape(say("Your guess: {}").format(asked) if asked else say("Your guess"))
    key = html.escape(f"{chapter} {name}", quote=True)
    return (
        f'<div class="guess-box" data-guess="{key}"><label>{label}'
        ' <input type="text" inputmode="decimal" autocomplete="off"></label> <output></output></div>'
    )


def answer(chapter: str, output) -> str:
    each = output["data"][MIME]
    key = html.escape(f"{chapter} {each['name']}", quote=True)
    text = html.escape(output["data"]["text/plain"])
    return f'<div class="guess-answer" data-guess="{key}" data-measured="{each["measured"]:g}"><p>{text}</p></div>'
