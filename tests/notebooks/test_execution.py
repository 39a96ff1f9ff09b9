"""What executes the chapters, on small texts: what goes wrong is one line, and nothing is left."""

import base64
import io
import json
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest
from PIL import Image

from bench.course import chapters
from bench.course.chapters import reduce_colours
from bench.errors import RunFailed
from bench.files import PROJECT
from tests.notebooks import cell, markdown, sleeping
from tests.notebooks.executed import as_if_executed
from tests.runs import ROOT, refuses, wait_for

nbformat = pytest.importorskip("nbformat", reason="the notebooks extra is not installed")


def text_of(tmp_path, *codes: str):
    path = tmp_path / "01_small.md"
    path.write_text(markdown("# 1. Small", *map(cell, codes)))
    return path


def test_a_failing_cell_is_one_line_and_what_came_before_is_kept(tmp_path, forked_python, monkeypatch):
    monkeypatch.setattr(sys, "executable", forked_python)
    path = text_of(tmp_path, "print('a')\nprint('b')", "raise ValueError('no\\nmore')", "print('c')")
    out = tmp_path / "out"
    with refuses("01_small.md", "ValueError: no", out / "01_small.ipynb", error=RunFailed):
        chapters.execute(path, out)
    first, second, third = json.loads((out / "01_small.ipynb").read_text())["cells"][1:]
    assert ["".join(o["text"]) for o in first["outputs"]] == ["a\nb\n"] and second["outputs"] and not third["outputs"]
    assert not chapters.is_current(path, to=out)


def test_a_kernel_that_dies_is_late_or_never_starts_is_one_line_and_leaves_nobody(tmp_path, forked_python, monkeypatch):
    monkeypatch.setattr(sys, "executable", forked_python)

    def fails(code: str, value: str) -> None:
        with refuses("01_small.md", value, error=RunFailed):
            chapters.execute(text_of(tmp_path, code), tmp_path / "out")

    fails("import os; os.kill(os.getpid(), 9)", "kernel")
    monkeypatch.setattr(chapters, "CELL_LIMIT_S", 3)
    fails("import subprocess; subprocess.Popen(['sleep', '173'], start_new_session=True).wait()", "3 s")
    assert not sleeping("173")
    module = tmp_path / "ipykernel_launcher.py"  # found before the real one
    module.write_text("import time\ntime.sleep(100)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(chapters, "START_LIMIT_S", 1)
    fails("1", "1 s")


def test_ctrl_c_ends_the_kernel_and_all_below_it(tmp_path):
    """As from a terminal: SIGINT to the command alone."""
    path = text_of(tmp_path, "from bench import course", "course.shell('sleep 179')")
    code = "import sys; from pathlib import Path; from bench.course import chapters; "
    code += "chapters.execute(Path(sys.argv[1]), Path(sys.argv[2]))"
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "out")]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: sleeping("179"), "the cell")
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
    assert not sleeping("179") and not [p for p in below if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_a_notebook_of_another_text_is_not_current(tmp_path):
    path = text_of(tmp_path, "a = 1")
    out = tmp_path / "out"
    out.mkdir()
    assert not chapters.is_current(path, to=out)
    for made, full, quick in (({"quick": False}, True, True), ({"quick": True}, False, True)):
        notebook = {"metadata": {"course": made | {"text": chapters.digest(path)}}}
        (out / "01_small.ipynb").write_text(json.dumps(notebook))
        assert (chapters.is_current(path, to=out), chapters.is_current(path, True, out)) == (full, quick)
    path.write_text(path.read_text() + "more")
    assert not chapters.is_current(path, True, out)


def test_outputs_stay_in_the_committed_notebook_while_the_code_stays(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    path = text_of(tmp_path, "a = 1", "b = 2")
    assert chapters.find_with_outputs(path, to=out) is None
    printed = [nbformat.v4.new_output("stream", text=text) for text in (f"in {PROJECT}/bench/cli.py\n", "two\n")]
    chapters.show_outputs(path, as_if_executed(path, out, *printed))

    path.write_text(path.read_text() + "\nOther words.\n")
    chapters.write_notebooks([path])
    shown = json.loads(path.with_suffix(".ipynb").read_text())
    first, second = [cell for cell in shown["cells"] if cell["cell_type"] == "code"]
    assert first["outputs"][0]["text"] == ["in bench/cli.py\n"] and second["outputs"][0]["text"] == ["two\n"]
    assert "Other words." in shown["cells"][-1]["source"] and shown["metadata"]["course"]["where"] == "a machine"
    assert chapters.find_with_outputs(path, to=out) == path.with_suffix(".ipynb")

    path.write_text(path.read_text().replace("b = 2", "b = 3"))
    chapters.write_notebooks([path])
    shown = json.loads(path.with_suffix(".ipynb").read_text())
    assert "course" not in shown["metadata"] and not any(cell.get("outputs") for cell in shown["cells"])
    assert chapters.find_with_outputs(path, to=out) is None


def test_a_committed_picture_is_the_same_in_fewer_bytes():
    shades = np.linspace(0, 255, 200 * 300).reshape(200, 300)
    many = np.stack([shades, shades.T.reshape(200, 300), shades[::-1]], axis=-1).astype("uint8")
    file = io.BytesIO()
    Image.fromarray(many).save(file, "PNG")
    small = base64.b64decode(reduce_colours(base64.b64encode(file.getvalue()).decode()))
    back = np.asarray(Image.open(io.BytesIO(small)).convert("RGB")).astype(int)
    assert len(small) < len(file.getvalue()) / 2
    assert back.shape == many.shape and np.abs(back - many).mean() < 32


def test_what_cannot_be_asked_for():
    for quick, pair in ((True, False), (False, True)):
        with refuses("OUTPUTS=1", "QUICK", "PAIR"):  # small sizes are not committed
            chapters.run(None, quick, pair, outputs=True)
    with refuses("'99'", "left_out"):  # of the Chinese edition
        chapters.run("99", quick=False, only_pair=True, outputs=False)
