"""Every worked example in a docstring is run."""

import doctest
import importlib

import pytest

from tests.runs import ROOT

MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(
        [*(ROOT / "bench").rglob("*.py"), *(ROOT / "tests").glob("validation/**/*.py"), ROOT / "tests" / "lint.py"]
    )
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_worked_examples(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried and not failed
