import os
import sys

import pytest

from bench.files import LINUX


@pytest.fixture(scope="module")
def forked_python(tmp_path_factory):
    """What replaces sys.executable; the real one where a fork is not safe."""
    if not LINUX:
        yield sys.executable
        return
    with pytest.MonkeyPatch.context() as patch:
        startup = tmp_path_factory.mktemp("ipython") / "profile_default" / "startup" / "00_course.py"
        startup.parent.mkdir(parents=True)
        startup.write_text("import bench.course\nbench.course.show_figures()\n")  # as its import would
        patch.setenv("IPYTHONDIR", str(startup.parents[2]))
        yield os.environ["TESTS_PYTHON_OF_CHAPTERS"]
