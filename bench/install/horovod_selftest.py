"""`bench install-horovod --self-test FOLDER`: Horovod's own tests of its torch side, against what is installed here.

Its source distribution has no tests, so they come from a clone of its repository. Tried with commit 2626dc87 and torch
2.14.1, over Gloo. Two ranks under horovodrun; what is left out, and why, is in LEFT_OUT and is printed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from bench.errors import BenchError, UserError
from bench.install.horovod_status import cache_dir, installed_version
from bench.install.logged import run_logged

RANKS = 2
TESTS = Path("test") / "parallel" / "test_torch.py"
TRIES_ALL = "tries every optimizer of torch, and Muon, newer than the test, takes matrices alone"
LEFT_OUT = {
    "TorchTests::test_broadcast_state": TRIES_ALL,
    "TorchTests::test_broadcast_state_options": TRIES_ALL,
    "TorchTests::test_force_allreduce": TRIES_ALL,
}
MOCK = "from unittest.mock import *\n"  # the tests import a package of this name, which became a part of Python


def self_test(folder: str, timeout: float) -> None:
    """Run them and print what came of them. folder: a clone of Horovod's repository. timeout: seconds.

    Raises UserError where there is no such test or no pytest, BenchError where one fails or the time is over.
    """
    tests = Path(folder).expanduser().resolve() / TESTS
    if not tests.is_file():
        raise UserError(
            f"SELF_TEST={folder} has no {TESTS}: name a clone of Horovod's repository "
            "(git clone https://github.com/horovod/horovod; its source distribution has no tests)"
        )
    if importlib.util.find_spec("pytest") is None:
        raise UserError(f"Horovod's tests need pytest: run `{sys.executable} -m pip install pytest`")
    log = cache_dir() / "logs" / "self-test.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    for name, why in LEFT_OUT.items():
        print(f"left out: {name}: {why}")
    title, until = f"Horovod {installed_version()}: its own tests of torch on {RANKS} ranks", time.monotonic() + timeout
    with tempfile.TemporaryDirectory(prefix="self-test-") as work:
        (Path(work) / "mock.py").write_text(MOCK)
        env = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), work]))
        try:
            code = run_logged(command(tests, Path(work)), log, title, env=env, cwd=work, deadline=until)
        except TimeoutError:
            raise BenchError(f"Horovod's tests did not end within {timeout:g} s (TIMEOUT); log: {log}") from None
        said = [without_rank(path.read_text(errors="replace")) for path in sorted(Path(work).glob("out/rank.*/stdout"))]
    with log.open("a") as file:
        file.writelines(said)
    for rank, text in enumerate(said):
        print(f"rank {rank}: {result(text)}")
    failed = sorted({name for text in said for name in re.findall(r"^FAILED \S+::(\w+)", text, re.MULTILINE)})
    if code or failed or len(said) != RANKS:
        raise BenchError(f"Horovod's own tests fail here: {', '.join(failed) or 'see the log'}; log: {log}")


def command(tests: Path, work: Path) -> list[str]:
    """horovodrun over Gloo with pytest on every rank; their output goes to work/out/rank.<r>."""
    pytest = [sys.executable, "-m", "pytest", str(tests), "-q", "-p", "no:cacheprovider", "-c", os.devnull,
              "--rootdir", str(tests.parent)]  # fmt: skip
    pytest += [f"--deselect={tests.name}::{name}" for name in LEFT_OUT]
    argv = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(RANKS), "-H", f"localhost:{RANKS}"]
    return [*argv, "--disable-cache", "--output-filename", str(work / "out"), *pytest]


def without_rank(text: str) -> str:
    """What a rank printed, without the mark that horovodrun puts before each line.

    >>> without_rank("[0]<stdout>:1 passed\\n")
    '1 passed\\n'
    """
    return re.sub(r"^\[\d+\]<stdout>:", "", text, flags=re.MULTILINE)


def result(text: str) -> str:
    """pytest's last line.

    >>> result("..s\\n=== short test summary info ===\\n101 passed, 4 skipped in 55.01s\\n")
    '101 passed, 4 skipped in 55.01s'
    """
    lines = re.findall(r"^=* ?(\d+ \w+.* in [\d.]+s.*?) ?=*$", text, re.MULTILINE)
    return lines[-1] if lines else "no result: it was ended, or did not start"
