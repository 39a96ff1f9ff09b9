"""What of a student's text is shown on a feedback page, which a teacher opens: text with its layout, and no tag that
acts, leads away, asks for anything or covers the rest of the page.

nbgrader's page shows a Markdown cell with all the HTML in it, and a policy in the page has no say over every tag
(``<meta http-equiv=refresh>``). A module of its own because it can be imported only where nbconvert is.
"""

import html
import re

import bleach
from nbconvert.filters import markdown2html

TEXT = ("h1", "h2", "h3", "h4", "h5", "h6", "p", "br", "hr", "div", "span", "pre", "code", "blockquote", "em", "strong",
        "b", "i", "u", "s", "del", "sub", "sup", "small", "kbd", "ul", "ol", "li", "dl", "dt", "dd", "table", "caption",
        "thead", "tbody", "tfoot", "tr", "th", "td", "img", "a")  # fmt: skip
CLASSES = {
    "div": re.compile(r"highlight( hl-[\w-]+)?"),  # a block of coloured code
    "span": re.compile(r"[a-z][a-z0-9]?|err|hll|cpf|ges"),  # a word in it; no class of the page's own
}


def is_kept(tag: str, name: str, value: str) -> bool:
    match name:
        case "class":
            return tag in CLASSES and bool(CLASSES[tag].fullmatch(value))
        case "href":
            return tag == "a" and value.lower().startswith(("https://", "http://", "mailto:", "#"))
        case "src":
            return tag == "img" and value.lower().startswith("data:image/")
        case "colspan" | "rowspan":
            return tag in ("td", "th") and value.isdecimal() and len(value) < 4
    return name in ("alt", "title")


def clean(page: str | bytes) -> str:
    """HTML with what is not in TEXT shown as it was written."""
    page = page.decode(errors="replace") if isinstance(page, bytes) else str(page)
    try:
        return bleach.clean(page, TEXT, is_kept, protocols=("http", "https", "mailto", "data"))
    except Exception:  # a library's, or a RecursionError: ten thousand tags in each other
        return plain(page)


def markdown(source: str) -> str:
    try:
        return clean(markdown2html(source))
    except Exception:
        return plain(source)


def plain(source: str) -> str:
    return f"<pre>{html.escape(source)}</pre>"
