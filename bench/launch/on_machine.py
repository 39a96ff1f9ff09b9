"""What REMOTE starts on one machine of HOSTS: ``python -m bench.launch.on_machine FOLDER``.

It says what the machine has, starts the engine's command there, and ends it when the process that asks is gone or
silent. Each line of stdin is a question in JSON, each line of stdout an answer. The ranks themselves look after
themselves as under any other launcher (bench/launch/joining.py).
"""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from bench.config.modes import MODES
from bench.config.options import from_dict
from bench.errors import UserError
from bench.files import SHARED
from bench.launch import machine
from bench.launch.command import OF_ENGINES
from bench.launch.node import Node
from bench.launch.placement import Placement
from bench.measure import steady, waiting

SILENCE_S = 60.0  # without a question, when no TIMEOUT is longer
# Read while a run goes on.
LIVE = (".rank*.status", ".rank0.epochs", ".rank0.starts", ".rank0.verdict.json", ".rank*.error.json", "*.log")
LOG_BYTES = 2**16  # of the end of a log, while a run goes on
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # where the user has set them, they count on all machines


class OnMachine:
    """Each public method is a question, with its arguments as JSON; what it returns is the answer."""

    def __init__(self):
        self.node, self.own_folder, self.listener, self.others, self.told = None, None, None, [], {}
        self.silence_s = SILENCE_S

    def look(self, config: dict, ours: dict, devices: int) -> dict:
        """What this machine is and has. ours: what the one that asks is."""
        asked, mine = from_dict(config), machine.describe()
        if why := machine.differs(mine, ours, asked.mode, "here"):
            raise UserError(why)
        return mine | machine.device(asked, devices)

    def address(self, iface: str | None, towards: str, url: str | None) -> dict:
        found = machine.address_of(iface, towards)
        self.listener = machine.listener(found["address"])  # while the run goes on
        port = machine.meeting_port(found["address"], url)
        return found | {"port": port, "listens": self.listener.getsockname()[1]}

    def place(self, placement: dict, others: list[list], config: dict, run_dir: str, mark: str) -> str | None:
        """Where this machine's ranks write: None in the run's folder itself, if it is there; else one of its own."""
        placement, self.config = Placement(**placement | {"ranks": range(*placement["ranks"])}), from_dict(config)
        self.others, self.silence_s = [placement.address, others], max(SILENCE_S, self.config.timeout)
        if why := self.unreachable():
            raise UserError(f"{why}: name another interface as IFACE (this is {placement.iface}), or open the way "
                            "between them")  # fmt: skip
        if others and MODES[self.config.mode].needs and (why := machine.answers_to_its_name(placement.address)):
            raise UserError(why)
        run_dir = Path(run_dir)
        with contextlib.suppress(OSError):
            if (run_dir / SHARED).read_text() == mark and os.access(run_dir, os.W_OK):
                self.node = Node(placement, run_dir)
                return None
        self.own_folder = Path(tempfile.mkdtemp(prefix="bench-"))
        (self.own_folder / "config.json").write_text(json.dumps(config))
        self.node = Node(placement, self.own_folder)
        return str(self.own_folder)

    def unreachable(self) -> str:
        return machine.reach(*self.others) if self.others else ""

    def start(self, since_s: float, variables: dict) -> None:
        """Start the engine. since_s: how long ago the run began, for clocks are not compared. variables: of the user's
        environment, which counts on all machines."""
        argv, environment = self.node.command(self.config, steady.now() - since_s)
        own = {name: variables[name] for name in INTERFACES if name in variables and not self.config.iface}
        if not waiting.variables(variables):  # the user's own policy
            environment = {name: value for name, value in environment.items() if name not in waiting.BOUNDED}
        users = {name: value for name, value in variables.items() if not OF_ENGINES.fullmatch(name)}
        self.node.start(argv, users | environment | own)

    def poll(self) -> list:
        """The exit code, once the engine has ended; what is new in files that nobody else can read."""
        before, self.told = self.told, {}
        for path in (path for pattern in LIVE if self.own_folder for path in self.own_folder.glob(pattern)):
            data = path.read_bytes()
            self.told[path.name] = base64.b64encode(data[-LOG_BYTES:] if path.suffix == ".log" else data).decode()
        return [self.node.wait(0), dict(self.told.items() - before.items())]

    def end(self) -> None:
        """End all that was started, but keep its files until this process ends."""
        if self.node and self.node.tree.process:
            self.node.end()

    def leave(self) -> None:
        try:
            self.end()
            if self.own_folder:
                shutil.rmtree(self.own_folder, ignore_errors=True)
        finally:
            os._exit(0)


def answer(asked: OnMachine, line: bytes) -> None:
    """One line to whoever asks."""
    number, name, given = json.loads(line)
    try:
        said = {"answer": getattr(asked, name)(**given)}
    except UserError as error:
        said = {"refused": str(error)}
    except Exception as error:
        said = {"refused": f"{name} failed: {type(error).__name__}: {error}"}
    os.write(1, json.dumps({"id": number, **said}).encode() + b"\n")


def main() -> None:
    """Answer until there are no more questions."""
    asked, text = OnMachine(), b""
    if len(sys.argv) > 1 and Path(sys.argv[1]).is_dir():
        os.chdir(sys.argv[1])
    for number in (signal.SIGTERM, signal.SIGHUP):  # REMOTE's way of saying that the other side is gone
        signal.signal(number, lambda *_: asked.leave())
    with contextlib.suppress(BrokenPipeError):
        while select.select([0], [], [], asked.silence_s)[0] and (piece := os.read(0, 2**16)):
            *lines, text = (text + piece).split(b"\n")
            for line in filter(None, lines):
                answer(asked, line)
    asked.leave()


if __name__ == "__main__":
    main()
