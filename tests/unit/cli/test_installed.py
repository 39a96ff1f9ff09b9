"""The package installed from a wheel, outside of a clone: what needs no clone works, what needs one says so."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bench.cli import all_commands
from bench.course.exercises import release
from tests import runs
from tests.records import compare_programs, store, suite_records

pytestmark = pytest.mark.slow

OF_THE_CLONE = {line.name for line in all_commands() if {"clone", "sets"} & set(line.needs)}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    wheel = folder / release.build_wheel(folder)
    zipfile.ZipFile(wheel).extractall(folder)
    elsewhere = tmp_path_factory.mktemp("elsewhere")

    def run(*words) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "bench", *map(str, words)]
        environment = os.environ | {"PYTHONPATH": str(folder)}
        return subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=200)

    return run


def test_a_command_that_needs_the_clone_says_so(installed, tmp_path):
    assert {"notebooks", "notebooks open", "site", "site slides", "course release", "course grade", "course export",
            "course check"} == OF_THE_CLONE  # fmt: skip
    for name in ("site slides", "course grade"):  # a part, and one that needs no clone for your own sets
        result = installed(*name.split())
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert f"`bench {name}`" in result.stderr and f"`make {name}`" in result.stderr
    result = installed("course", "grade", tmp_path, "--sets", tmp_path)
    assert result.returncode == 2 and "clone" not in result.stderr


def test_records_are_read_and_drawn(installed, tmp_path):
    """With the schema and the page's template, which are files of the package and no modules. So are the scripts."""
    store(tmp_path / "runs", suite_records("compare", compare_programs(), rounds=2))
    result = installed("report", "--records", tmp_path / "runs")
    assert result.returncode == 0 and not result.stderr, result.stderr
    assert "<svg" in (tmp_path / "runs" / "report.html").read_text()
    assert "\n-    sampler.set_epoch" in installed("mistake", "show", "no-reshuffle").stdout


def test_a_run_is_made(installed, tmp_path):
    """Its ranks are fresh ones of spawn."""
    options = runs.flags(**runs.SMALL | {"mode": "ddp", "gpus": 2, "launcher": "spawn", "model": "shufflenet_v2_x0_5"})
    result = installed("run", *options, "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.splitlines()[-1].removeprefix("record: ")).is_file()
