"""A Sphinx extension: each page has a link to the same page in the other language, and a translated heading the anchor
of the English one. ``bench/course/site.py`` writes their tables, ``editions.json``, to the folder of the pages.
"""

import html
import json
import posixpath
from pathlib import Path

from bench.course import translation

NAMES = {"en": "English", "zh-CN": "中文"}
STATE = {}  # of the build in this process: app, and the content of editions.json


def heading_slug(title: str) -> str:
    """For MyST's ``myst_heading_slug_func``, which gets nothing but the title."""
    from mdit_py_plugins.anchors.index import slugify

    english = STATE["anchors"].get(STATE["app"].env.docname, {}).get(title, [title])
    return slugify(english.pop(0) if len(english) > 1 else english[0])  # MyST asks for the headings in their order


def read_editions(app) -> None:
    path = Path(app.srcdir) / "editions.json"
    STATE.update(app=app, root="", twins={}, anchors={})
    STATE.update(json.loads(path.read_text()) if path.exists() else {})
    if is_chinese(app):
        app.add_js_file("phrases.js", defer="defer", priority=100)
        from sphinx.search.zh import SearchChinese

        class Words(SearchChinese):
            language_name = "English"  # of the class of its stemmer: Sphinx 9 would write one that does not exist

        app.add_search_language(Words)


def is_chinese(app) -> bool:
    return app.config.language.startswith(translation.LANGUAGE)


def add_switch(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    """The template ``language.html`` shows it. Search and index are on both sites; of another page that is not in the
    other language, the switch leads to the start, which is not an alternate of the page."""
    if not STATE["root"]:
        return
    twin = f"{STATE['root']}{pagename}.html" if doctree is None else STATE["twins"].get(pagename)
    address = posixpath.relpath(twin or f"{STATE['root']}index.html", posixpath.dirname(pagename) or ".")
    own, other = ("zh-CN", "en") if is_chinese(app) else ("en", "zh-CN")
    context["other_edition"] = {"address": address, "language": other, "words": NAMES[other]}
    links = [(own, f"{posixpath.basename(pagename)}.html"), (other, address)] if twin else []
    context["metatags"] = context.get("metatags", "") + "".join(
        f'\n<link rel="alternate" hreflang="{language}" href="{html.escape(place)}">' for language, place in links
    )


def write_phrases(app, error) -> None:
    if error is None and is_chinese(app):
        (Path(app.outdir) / "_static" / "phrases.js").write_text(translation.phrases_script(), encoding="utf-8")


def setup(app) -> dict:
    app.connect("builder-inited", read_editions)
    app.connect("html-page-context", add_switch)
    app.connect("build-finished", write_phrases)
    return {"parallel_read_safe": False}
