"""Commands from a notebook: live output, a limit, and a failed command fails its cell (`!command` never does)."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.errors import RunFailed, UserError
from bench.record import PROJECT

# A kernel may have been started without its environment's folder on PATH, and then these would be others, or missing.
PROGRAMS = {
    "python": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "horovodrun": [sys.executable, "-m", "horovod.runner.launch"],
    "bench": [sys.executable, "-m", "bench"],
}
GRACE_S = 5.0  # from SIGTERM to SIGKILL
COLOURS = (
    "FORCE_COLOR",
    "CLICOLOR_FORCE",
    "TTY_COMPATIBLE",
)  # set by a kernel: a pipe would look like a terminal


def bench(command: str = "run", timeout: float = 600.0, quiet: bool = False, **variables):
    """Run one command of the project with the variables that `make` takes: ``bench(MODE="ddp", GPUS=2, STEPS=10)``.

    The line that does the same in a terminal is printed first. A run is made without baselines unless BASELINES=1 is
    given. Its files lie in a folder of their own, which is removed after the records are read, unless OUT is given.
    Returns the record of a run (a dict, as in record.json); of a command that compares, the list of its suites.

    Raises RunFailed when the command ends with an error: a wrong variable, a rank that died.
    """
    from bench.report.load import find_records
    from bench.report.suites import suites_of

    target = "bench" if command == "run" else command
    if command == "run":
        variables = {"BASELINES": 0} | variables
    print("$ make", target, *(f"{name}={shlex.quote(str(value))}" for name, value in variables.items()), flush=True)
    with contextlib.ExitStack() as stack:
        out = variables.get("OUT") or stack.enter_context(tempfile.TemporaryDirectory(prefix="runs-"))
        variables["OUT"] = out
        flags = [f"--{name.lower().replace('_', '-')}={value}" for name, value in variables.items()]
        execute([*PROGRAMS["bench"], command, *flags], timeout, "" if quiet else str(out))
        records, refused = find_records(Path(out))
    if refused:
        raise UserError(refused[0])
    return records[-1] if command == "run" else suites_of(records)


def shell(line: str, timeout: float = 120.0) -> None:
    """Run one command line with live output: ``shell("torchrun --nproc-per-node 2 --tee 3 train.py")``.

    python, torchrun, horovodrun and bench are those of this notebook's environment. No pipes and no wildcards.
    Raises RunFailed when the command ends with an error, or not within ``timeout`` seconds; nothing of it is left.
    """
    program, *rest = shlex.split(line)
    print(f"$ {line}", flush=True)
    execute([*PROGRAMS.get(program, [program]), *rest], timeout)


def execute(argv: list[str], timeout: float, hidden: str | None = None) -> None:
    """Run a command in a session of its own and print its lines as they come.

    hidden: lines that hold this text are left out; "" prints nothing. Raises RunFailed with the last line that was
    printed.
    """
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    environment = {name: value for name, value in os.environ.items() if name not in COLOURS}
    environment |= {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "110", "TERM": "dumb"}
    try:
        process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise RunFailed(f"{argv[0]} cannot be started: {error.strerror}") from None
    ended = threading.Event()

    def end_late() -> None:
        if not ended.wait(timeout):
            end_group(process)

    threading.Thread(target=end_late, daemon=True).start()
    started, last = time.monotonic(), ""
    try:
        for text in process.stdout:
            last = text.strip() or last
            if hidden is None or (hidden and hidden not in text):
                print(text, end="", flush=True)
        code = process.wait()
    finally:
        ended.set()
        end_group(process)
    if time.monotonic() - started >= timeout:
        raise RunFailed(f"not ended within {timeout:g} s (timeout=), and stopped")
    if code:
        raise RunFailed(f"the command ended with code {code}: {last}")


def end_group(process: subprocess.Popen) -> None:
    """End the whole session of a command: SIGTERM, then SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        os.killpg(process.pid, signal.SIGKILL)
