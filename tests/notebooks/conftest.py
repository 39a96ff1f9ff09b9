"""What the chapters' tests share."""

import sys

import pytest

from bench.files import LINUX
from tests.browser.chromium import browser  # noqa: F401
from tests.forked_programs import shared

IMPORTED = ("bench.course.chapters", "nbclient", "bench.course", "ipykernel.kernelapp", "ipykernel.ipkernel",
            "matplotlib.pyplot", "matplotlib_inline.backend_inline", "pandas", "sklearn.datasets",
            "scipy.stats")  # fmt: skip


@pytest.fixture(scope="module")
def forked_python(tmp_path_factory):
    """What stands in the place of sys.executable; the real one where a fork is not safe."""
    if not LINUX:
        yield sys.executable
        return
    with pytest.MonkeyPatch.context() as patch:
        # Both are read while what is imported here is.
        patch.setenv("COURSE_QUICK", "1")
        patch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        with shared(tmp_path_factory.getbasetemp(), "chapters", *IMPORTED) as programs:
            startup = tmp_path_factory.mktemp("ipython") / "profile_default" / "startup" / "00_course.py"
            startup.parent.mkdir(parents=True)
            startup.write_text("import bench.course\nbench.course.show_figures()\n")  # as its import would
            patch.setenv("IPYTHONDIR", str(startup.parents[2]))
            yield programs.python
