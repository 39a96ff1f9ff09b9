"""Horovod's own tests of its torch side, against what is installed here.

    python -m tests.validation.horovod_tests FOLDER

FOLDER is a clone of Horovod's repository: its source distribution has no tests. Tried with commit 2626dc87 and torch
2.14.1, over Gloo. Two ranks under horovodrun (with one fault of it fixed: launch.py); omitted tests, and why, is in
LEFT_OUT and is printed.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from bench.errors import BenchError, UserError
from bench.files import PROJECT
from bench.install.horovod_status import cache_dir, installed_version
from bench.install.logged import run_logged
from tests.validation.horovod_tests import rank as rank_side

RANKS = 2
TESTS = Path("test") / "parallel" / "test_torch.py"
TRIES_ALL = "tries every optimizer of torch, and Muon, newer than the test, takes matrices alone"
LEFT_OUT = {
    "test_broadcast_state": TRIES_ALL,
    "test_broadcast_state_options": TRIES_ALL,
    "test_force_allreduce": TRIES_ALL,
}
MOCK = "from unittest.mock import *\n"  # the tests import a package of this name, which became a part of Python


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.validation.horovod_tests",
                                     description=__doc__.splitlines()[0])  # fmt: skip
    parser.add_argument("folder", help="a clone of https://github.com/horovod/horovod")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds [1800]")
    args = parser.parse_args(argv)
    try:
        self_test(args.folder, args.timeout)
    except BenchError as error:
        print(f"horovod_tests: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def self_test(folder: str, timeout: float) -> None:
    """Run them and print what came of them. Raises UserError where there is no such test, BenchError where one fails or
    the time is over."""
    tests = Path(folder).expanduser().resolve() / TESTS
    if not tests.is_file():
        raise UserError(
            f"{folder} has no {TESTS}: name a clone of Horovod's repository "
            "(git clone https://github.com/horovod/horovod; its source distribution has no tests)"
        )
    log = cache_dir() / "logs" / "self-test.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    for name, why in LEFT_OUT.items():
        print(f"left out: {name}: {why}")
    try:
        ranks = run(tests, log, time.monotonic() + timeout)
    except TimeoutError:
        raise BenchError(f"Horovod's tests did not end within {timeout:g} s; log: {log}") from None
    for rank, found in enumerate(ranks):
        counts = [(sum(what == each for what in found.values()), each) for each in ("passed", "skipped", "failed")]
        print(f"rank {rank}: {', '.join(f'{count} {each}' for count, each in counts)}")
    bad = sorted({name for found in ranks for name, what in found.items() if what == "failed"})
    bad = bad or sorted({name for found in ranks for name, what in found.items() if what == rank_side.BEGUN})
    if bad or not all(ranks):
        raise BenchError(f"Horovod's own tests fail here: {', '.join(bad) or 'they do not start'}; log: {log}")


def run(tests: Path, log: Path, deadline: float) -> list[dict[str, str]]:
    """What came of every test, by rank: passed, skipped, failed; begun where the rank was ended in it.

    Raises TimeoutError at the deadline (of time.monotonic()).
    """
    title = f"Horovod {installed_version()}: its own tests of torch on {RANKS} ranks"
    with tempfile.TemporaryDirectory(prefix="self-test-") as work:
        (Path(work) / "mock.py").write_text(MOCK)
        env = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PROJECT), env.get("PYTHONPATH"), work]))
        env[rank_side.LEFT_OUT] = " ".join(LEFT_OUT)
        env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # what else is installed has no part in this, and takes seconds
        run_logged(command(tests), log, title, env=env, cwd=work, deadline=deadline)
        return [rank_side.results(Path(work), rank) for rank in range(RANKS)]


def command(tests: Path) -> list[str]:
    pytest = [sys.executable, "-m", "pytest", str(tests), "-v", "--capture=sys", "-p", "no:cacheprovider", "-c",
              os.devnull, "--rootdir", str(tests.parent), "-p", rank_side.__name__]  # fmt: skip
    launch = [sys.executable, "-m", "tests.validation.horovod_tests.launch", "--gloo", "-np", str(RANKS)]
    return [*launch, "-H", f"localhost:{RANKS}", "--disable-cache", *pytest]


if __name__ == "__main__":
    sys.exit(main())
