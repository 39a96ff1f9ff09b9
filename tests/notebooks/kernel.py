"""A kernel for tests: cells in, what they printed and raised out. The kernel is the one that the chapters run in."""

import contextlib
import os
import re
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.course.chapters import kernel_command
from bench.course.shell import own_paths
from bench.process.tree import MARK, Tree
from tests.runs import PATIENT

LIMIT_S = 200  # for one cell, on a busy machine
TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Said:
    printed: str = ""
    shown: list[dict] = field(default_factory=list)  # by kind of text, as in a notebook
    raised: str = ""  # "ValueError: no"
    traceback: str = ""


class Kernel:
    """A kernel whose temporary files lie in a folder of its own. Use as a context manager."""

    def __init__(self, folder: Path, **variables: str):
        self.tree = Tree()
        self.temporary = Path(folder) / "tmp"
        self.temporary.mkdir()
        self.variables = {
            **os.environ, **PATIENT, "PYTHONPATH": own_paths()["PYTHONPATH"], "TMPDIR": str(self.temporary),
            "PYDEVD_DISABLE_FILE_VALIDATION": "1", **self.tree.mark, **variables,
        }  # fmt: skip

    def __enter__(self) -> "Kernel":
        from jupyter_client.manager import KernelManager

        self.manager = KernelManager(kernel_name="python3")
        self.manager.kernel_spec.argv = kernel_command()
        self.manager.start_kernel(env=self.variables)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT_S)
        self.pid = self.manager.provisioner.pid
        return self

    def __exit__(self, *_) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()

    def run(self, code: str, do_when=None) -> Said:
        """Run one cell to its end. do_when: (a text that it prints, a function to call then)."""
        said, message = Said(), self.client.execute(textwrap.dedent(code).strip())
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            answer = self.client.get_iopub_msg(timeout=LIMIT_S)
            if answer["parent_header"].get("msg_id") != message:
                continue
            kind, content = answer["msg_type"], answer["content"]
            if kind == "stream":
                said.printed += content["text"]
            elif kind in ("display_data", "execute_result"):
                said.shown.append(content["data"])
            elif kind == "error":
                said.raised = f"{content['ename']}: {content['evalue']}"
                said.traceback = TERMINAL_CODES.sub("", "\n".join(content["traceback"]))
            elif kind == "status" and content["execution_state"] == "idle":
                return said
            if do_when and do_when[0] in said.printed:
                do_when[1]()
                do_when = None
        raise AssertionError(f"not ended within {LIMIT_S} s; so far: {said}")

    def processes(self) -> list[str]:
        """The command lines of all that this kernel has started; neither itself nor the process that stays to fork
        ranks is among them."""
        stays = [process.pid for process in self.staying()]
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if self.tree.token in process.environ().get(MARK, "").split() and process.pid not in (self.pid, *stays):
                    found.append(" ".join(process.cmdline()))
        return found

    def staying(self) -> list[psutil.Process]:
        """The processes that stay, of this kernel's own children: one, or none. Ranks have the same command line."""
        found = []
        for process in psutil.Process(self.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # one that has just ended
                if process.cmdline()[-2:] == ["-m", "bench.course.start"]:
                    found.append(process)
        return found

    def left(self, within: float = 10.0) -> list[str]:
        """Processes and temporary files that are left, after a while. torch leaves a folder, with any optimizer."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            files = [str(path) for path in self.temporary.iterdir() if not path.name.startswith("torchinductor_")]
            left = [*self.processes(), *files]
            if not left:
                break
            time.sleep(0.2)
        return left
