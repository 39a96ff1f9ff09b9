"""The accessibility checks of axe-core (https://github.com/dequelabs/axe-core), in a page that the browser shows.

`npm install --prefix build axe-core@4.14.1` installs it, or AXE_CORE names its folder.
"""

import os
from pathlib import Path

import pytest

from bench.files import PROJECT

FOLDER = Path(os.environ.get("AXE_CORE") or PROJECT / "build" / "node_modules" / "axe-core")
SCRIPT = FOLDER / "axe.min.js"
needs_axe = pytest.mark.skipif(not SCRIPT.exists(), reason="axe-core is not installed: see tests/browser/axe.py")

RUN = """axe.run(document, { resultTypes: ["violations"] }).then(found => found.violations.map(
  each => `${each.id} (${each.impact}): ${each.nodes.slice(0, 3).map(node => node.html.slice(0, 200)).join(" | ")}`))"""


def find_violations(browser) -> list[str]:
    """What axe finds, with the first elements of each kind."""
    browser.evaluate(f"{SCRIPT.read_text()}; true")
    return browser.evaluate(RUN)
