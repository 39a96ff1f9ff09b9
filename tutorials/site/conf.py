"""How Sphinx makes the site of the course (`make site`). Nothing on a page comes from another host.

The Chinese pages are made with another language, project and html_title (bench/course/site.py).
"""

project = "Data-parallel training"
html_title = "Data-parallel training"
language = "en"
extensions = ["myst_nb", "bench.course.formulas", "bench.course.sphinx_editions"]

nb_execution_mode = "off"  # the chapters have been executed by `bench notebooks`
nb_merge_streams = True
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
nb_ipywidgets_js = {}  # they would come from another host; no chapter uses widgets
myst_heading_anchors = 3
myst_heading_slug_func = "bench.course.sphinx_editions.heading_slug"
myst_enable_extensions = ["dollarmath"]
myst_dmath_allow_space = False
myst_dmath_allow_digits = False  # $5 is money
html_math_renderer = "mathtext"  # of bench.course.formulas

html_theme = "sphinx_book_theme"
html_theme_options = {
    "use_fullscreen_button": False,
    "use_download_button": True,
    "show_navbar_depth": 1,
    "navbar_persistent": [],
    "article_header_end": ["language.html", "article-header-buttons.html"],
    "footer_content_items": [],
}
html_context = {"default_mode": "light"}
templates_path = ["templates"]
html_static_path = ["static", "figures"]
html_css_files = ["site.css"]
html_js_files = [("course.js", {"defer": "defer"}), ("figure.js", {"defer": "defer"})]
html_show_sphinx = False
html_show_copyright = False
