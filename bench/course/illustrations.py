"""Pictures that stand in a chapter's text, so that it can be read without running it.

Under a cell that is one expression, as ``course.diagrams.turns()`` or ``course.pictures(course.reference("weak"))[…]``,
the text may have a line ``![what it shows](pictures/NAME.svg)``, or with the path of a committed record's picture: the
file holds what the cell shows, and `python -m tests.validation.renew` draws it. A notebook has no such line, for its
cell shows the picture.
"""

import re

LINE = re.compile(r"^!\[[^\]]+\]\((?P<file>[\w./-]*pictures/[\w-]+\.svg)\)\n\n?", re.MULTILINE)


def without_pictures(text: str) -> str:
    """A chapter's text as its notebook has it."""
    return LINE.sub("", text)
