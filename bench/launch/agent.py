"""The agent of one machine of several: ``python -m bench.launch.agent``, started by the first through REMOTE.

What comes in, as lines of JSON over stdin: questions, and what to start. What goes out over stdout: answers, and while
a run goes on whatever its ranks write into the run's folder, which is a temporary one here. So nothing else must be
shared between the machines. When stdin ends, or is silent for too long, the agent ends all that it has started, and
itself.
"""

import base64
import contextlib
import json
import os
import queue
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.config.options import from_dict, to_dict
from bench.errors import UserError
from bench.launch import machine, ports
from bench.launch.node import Node
from bench.launch.placement import Placement
from bench.measure import steady

TICK_S = 0.2
SAY_S = 1.0  # between two signs of life
SILENCE_S = 60.0  # without a word from the first machine, when no run says otherwise
CHUNK = 2**18  # bytes of a file in one line
# Files that are sent while a run goes on.
LIVE = (".rank*.status", "*.log", ".rank0.epochs", ".rank0.starts", ".rank*.error.json")
KEPT_HERE = (".rank*", ".rendezvous", ".collectives-wanted", "config.json", "*.tmp")
QUESTIONS = ("gone", "stopped", "places", "out_of_memory")  # that are passed on to the node


class Agent:
    """Answers questions: each public method is one, with its arguments as JSON; what it returns is the answer."""

    def __init__(self):
        self.node, self.folder, self.listener, self.said = None, None, None, {}
        self.silence_s, self.others, self.brought = SILENCE_S, [], {}

    def describe(self) -> dict:
        return machine.describe()

    def device(self, config: dict, devices: int) -> str:
        return machine.device(from_dict(config), devices)

    def address(self, iface: str | None, towards: str | None) -> dict:
        return machine.address_of(iface, towards)

    def listen(self, address: str) -> int:
        """A port at which this machine can be reached, while the run goes on."""
        self.listener = machine.listener(address)
        return self.listener.getsockname()[1]

    def reach(self, own: str, others: list[list]) -> str:
        self.others = [own, others]
        return machine.reach(own, others)

    def unreachable(self) -> str:
        return machine.reach(*self.others) if self.others else ""

    def own_name(self, address: str) -> str:
        return machine.answers_to_its_name(address)

    def port(self, address: str, url: str | None) -> int:
        """Where all ranks meet: DIST_URL's port, else a free one."""
        if url is None:
            return ports.free_port(address)
        ports.require_free_port(address, int(url.rpartition(":")[2]), url)
        return int(url.rpartition(":")[2])

    def command(self, config: dict, placement: dict, run_dir: str | None, since_s: float) -> list:
        """The engine's command line and its environment on this machine. run_dir: the run's folder, where it is on this
        machine; None: a temporary one. since_s: how long ago the run began, for clocks are not compared."""
        config, placement = from_dict(config), Placement(**placement | {"ranks": range(*placement["ranks"])})
        if run_dir is None:
            self.folder = run_dir = tempfile.mkdtemp(prefix="bench-")
            (Path(run_dir) / "config.json").write_text(json.dumps(to_dict(config)))
        self.silence_s = max(SILENCE_S, config.timeout)
        self.node = Node(placement, Path(run_dir))
        return self.node.command(config, steady.now() - since_s)

    def take(self, name: str, data: str) -> None:
        """The next piece of a file that the run needs here. It is not sent back, unless a rank puts another one in its
        place."""
        with (Path(self.folder) / name).open("ab") as file:
            file.write(base64.b64decode(data))
            self.brought[name] = os.fstat(file.fileno()).st_ino

    def start(self, argv: list[str], environment: dict) -> None:
        self.node.start(argv, environment)

    def end(self) -> int | None:
        """End all, send what the run has left; the exit code of the engine's command, None where it is ended now."""
        code = self.node.wait(0)
        self.node.end()
        if self.folder:
            self.send_files(LIVE)
            self.send_files(("**/*",), but=(*KEPT_HERE, *LIVE))
        return code

    # --- what is sent unasked ---------------------------------------------------------------------------------------

    def look(self) -> None:
        """Send what is new of the run: files, and the end of the engine's command."""
        if self.folder:
            self.send_files(LIVE)
        if self.node and self.node.tree.process and (code := self.node.wait(0)) is not None:
            send(code=code)

    def send_files(self, patterns: tuple[str, ...], but: tuple[str, ...] = ()) -> None:
        """What has been written to files of the run's folder since it was last looked at."""
        folder = Path(self.folder)
        for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
            name = str(path.relative_to(folder))
            if not path.is_file() or path.is_symlink() or any(path.match(pattern) for pattern in but):
                continue
            if name.startswith((".torchrun", ".libraries")) or self.brought.get(name) == path.stat().st_ino:
                continue
            whole = name.endswith((".status", ".error.json"))  # written anew each time
            with path.open("rb") as file:
                at = 0 if whole else file.seek(self.said.get(name, 0))
                while (piece := file.read(CHUNK)) or name not in self.said:  # one that is empty is sent, too
                    if not whole or self.said.get(name) != piece:
                        send(file=name, at=at, data=base64.b64encode(piece).decode(), **age(name, piece))
                    at += len(piece)
                    self.said[name] = piece if whole else at

    def leave(self) -> None:
        """End all that is here, and this process."""
        try:
            if self.node and self.node.tree.process:
                self.node.end()
            if self.folder:
                shutil.rmtree(self.folder, ignore_errors=True)
        finally:
            os._exit(0)


def age(name: str, text: bytes) -> dict:
    """How long ago a rank wrote why it ended: its clock is this machine's."""
    try:
        return {"age_s": steady.now() - json.loads(text)["time"]} if name.endswith(".error.json") else {}
    except (ValueError, KeyError):
        return {}


def send(**message) -> None:
    """One line to the first machine."""
    with WRITING:
        OUT.write(json.dumps(message).encode() + b"\n")
        OUT.flush()


def answer(agent: Agent, question: dict) -> dict:
    """The answer to a question, or why there is none."""
    name, arguments = question["ask"], question["with"]
    try:
        asked = getattr(agent.node if name in QUESTIONS else agent, name)
        return {"id": question["id"], "answer": asked(**arguments)}
    except UserError as error:
        return {"id": question["id"], "refused": str(error)}
    except Exception as error:
        return {"id": question["id"], "refused": f"{name} failed: {type(error).__name__}: {error}"}


def listen(agent: Agent, questions: queue.Queue) -> None:
    """Take the questions; leave when there will be no more."""
    text = b""
    while select.select([0], [], [], agent.silence_s)[0] and (piece := os.read(0, 2**16)):
        *lines, text = (text + piece).split(b"\n")
        for line in filter(None, lines):
            questions.put(json.loads(line))
    agent.leave()


def main() -> None:
    """Answer until there are no more questions."""
    agent, questions, spoke = Agent(), queue.Queue(), 0.0
    if len(sys.argv) > 1 and Path(sys.argv[1]).is_dir():
        os.chdir(sys.argv[1])
    for number in (signal.SIGTERM, signal.SIGHUP):  # REMOTE's way of saying that the first machine is gone
        signal.signal(number, lambda *_: agent.leave())
    threading.Thread(target=listen, args=(agent, questions), daemon=True).start()
    try:
        while True:
            with contextlib.suppress(queue.Empty):
                send(**answer(agent, questions.get(timeout=TICK_S)))
            agent.look()
            if time.monotonic() > spoke + SAY_S:
                spoke = time.monotonic()
                send(alive=True)
    except BrokenPipeError:
        agent.leave()


if __name__ == "__main__":
    WRITING = threading.Lock()
    OUT = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed here
    main()
