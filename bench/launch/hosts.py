"""HOSTS: REMOTE starts one process per machine (machine.py), which starts that machine's ranks. The ranks join each
other and watch themselves (joining.py). No shared folder is needed: files are copied back at the end. A machine that
does not answer is lost, and the run's error names it."""

import base64
import contextlib
import json
import os
import secrets
import select
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.config.hosts import SSH, Host, parse
from bench.config.options import RunConfig, to_dict
from bench.errors import RunFailed, printable
from bench.files import LATEST, PROJECT, SHARED
from bench.launch import machine, supervise
from bench.launch.devices import weakest_over_machines
from bench.launch.node import ENDED, Node
from bench.launch.placement import Placement
from bench.measure import steady
from bench.process.tree import GRACE_S, Tree

ANSWER_S = 60.0  # for an answer
MOST_LINE = 2**24  # bytes of an answer
MOST_SAID = 500  # letters of a line that is shown
# Settings of launchers in this machine's environment that also apply on the other machines
FORWARDED = ("BENCH_", "OMP_", "GOMP_", "MKL_", "KMP_", "GLOO_", "NCCL_", "HOROVOD_", "TORCH_", "PYTORCH_", "MALLOC_")
STAYS = (".rank*", ".torchrun", ".libraries", "config.json", "*.tmp")  # not copied back


class Machine(Node):
    """One machine of HOSTS. here: whether it is this one."""

    def __init__(self, name: str, ranks: range, config: RunConfig, here: bool, run_dir: Path | None = None):
        super().__init__(Placement(ranks, host=name), run_dir)
        self.name, self.config, self.here, self.limit = name, config, here, min(ANSWER_S, config.timeout)
        self.number, self.why, self.text, self.said, self.code, self.folder = 0, "", b"", "", None, None
        self.ends = False  # we have ended its launcher
        program = [sys.executable, "-m", "bench.launch.machine", os.getcwd()]
        argv = self.command_there("env", f"PYTHONPATH={PROJECT}", *program)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        try:
            self.tree.start(argv, os.environ | steady.variables(), bufsize=0, **pipes)
        except OSError as error:
            raise self.fault(f"cannot be reached: {argv[0]} does not run ({error.strerror}): check REMOTE") from None

    def command_there(self, *words: str) -> list[str]:
        if self.here:
            return list(words)
        remote = [word.replace("{host}", self.name) for word in shlex.split(self.config.remote or SSH)]
        # ssh passes its words to a shell there; other programs start the command directly.
        return [*remote, *(map(shlex.quote, words) if Path(remote[0]).name == "ssh" else words)]

    def fault(self, why: str) -> RunFailed:
        rank = self.placement.ranks.start
        message = f"host {self.name} (rank {rank}): {why}"
        error = RunFailed(message)
        error.failure = {"rank": rank, "kind": "launcher", "message": message, "traceback": ""}
        return error

    def send(self, question: str, **given) -> None:
        self.number += 1
        with contextlib.suppress(OSError, ValueError):  # it is gone: ``answer`` notices
            self.tree.process.stdin.write(json.dumps([self.number, question, given]).encode() + b"\n")

    def answer(self, more_s: float = 0.0):
        """The answer to the last question. Raises RunFailed for a refusal, or without an answer in time."""
        limit = self.limit + more_s
        until = time.monotonic() + limit
        while not self.why:
            line = self.readline(until)
            if line is None:
                self.why = f"does not answer within {limit:g} s"
            elif (said := parse_answer(line, self.number)) is None:
                self.note(line)
            elif "refused" in said:
                raise self.fault(str(said["refused"])[:MOST_SAID])
            else:
                return said["answer"]
        raise self.fault(self.reason())

    def readline(self, until: float) -> bytes | None:
        """The next line, or None after ``until``. At the end of the output it sets ``why``."""
        while b"\n" not in self.text:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.tree.process.stdout], [], [], left)[0]:
                return None
            if not (piece := os.read(self.tree.process.stdout.fileno(), 2**16)):
                self.why, line, self.text = "ended", self.text, b""
                return line
            self.text = (self.text + piece)[-MOST_LINE:]
        line, _, self.text = self.text.partition(b"\n")
        return line

    def note(self, line: bytes) -> None:
        self.said = printable(line[: 4 * MOST_SAID].decode(errors="replace")).strip()[:MOST_SAID] or self.said

    def ask(self, question: str, **given):
        self.send(question, **given)
        return self.answer()

    def reason(self) -> str:
        """Why it is no longer available, and what to do; "" while it is."""
        if not self.why:
            return ""
        how = "its process" if self.here else f"`{(self.config.remote or SSH).replace('{host}', self.name)}`"
        said = f": {self.said}" if self.said else ""
        if self.why != "ended":
            return f"{self.why} ({how}{said}): check that the machine is up, or leave it out of HOSTS"
        if self.placement.joins:
            code = self.tree.wait(1.0)
            ended = "" if code is None else f" by signal {-code}" if code < 0 else f" with exit code {code}"
            return f"{how} ended{ended}{said}: check that the machine is up, and its memory"
        there = f"{PROJECT} and {sys.executable} there"
        return f"{how} did not start ranks there{said}: check that the machine is up, its name, REMOTE, and {there}"

    def close(self) -> None:
        """End the process there, which ends its children."""
        with contextlib.suppress(OSError):
            self.tree.process.stdin.close()
        self.tree.wait(0.2 if self.why else 3 * GRACE_S)
        self.tree.end()
        self.tree.process.stdout.close()

    def wait(self, seconds: float) -> int | None:
        with contextlib.suppress(RunFailed):
            if not self.why and not self.ends:
                time.sleep(seconds)
                self.code, files = self.ask("poll")
                for name, text in files.items():
                    (self.run_dir / Path(name).name).write_bytes(base64.b64decode(text))
        return self.code

    def lost_reason(self) -> str:
        return f"{self.name}: {self.reason()}" if self.why else ""

    def unreachable(self) -> str:
        with contextlib.suppress(RunFailed):
            if not self.why and (why := self.ask("unreachable")):
                return f"{self.name} {why}"
        return ""

    def crashed_ranks(self) -> list[bool]:
        return [self.code is not None and bool(beat) and beat.phase not in ENDED for beat in self.heartbeats()]

    def out_of_memory(self) -> str:
        return ""

    def stopped(self) -> list[bool]:
        return [False] * len(self.placement.ranks)

    def places(self) -> list[dict | None]:
        return [None] * len(self.placement.ranks)

    def start(self, started: float, variables: dict[str, str]) -> None:
        """Start its ranks. started: by this machine's clock. variables: of the user's environment."""
        if self.folder and self.config.elastic and (self.run_dir / LATEST).exists():
            packs = ["tar", "-C", str(self.run_dir), "-cf", "-", LATEST]
            self.copy(packs, self.command_there("tar", "-C", self.folder, "-xf", "-"))
        self.ask("start", since_s=steady.now() - started, variables=variables)

    def end(self) -> None:
        """End its ranks and fetch the files that they wrote on that machine."""
        self.ends = True
        with contextlib.suppress(RunFailed):
            self.ask("end")
            if self.folder:
                stays = [f"--exclude=./{name}" for name in [*STAYS, *([LATEST] if self.placement.number else [])]]
                packs = self.command_there("tar", "-C", self.folder, *stays, "-cf", "-", ".")
                self.copy(packs, ["tar", "-C", str(self.run_dir), "-xf", "-"])

    def copy(self, packs: list[str], unpacks: list[str]) -> None:
        """Pipe one command's archive into another. Raises RunFailed; the machine is then lost."""
        with tempfile.TemporaryFile() as packed, tempfile.TemporaryFile() as said:
            for argv, streams in ((packs, {"stdout": packed}), (unpacks, {"stdin": packed})):
                packed.seek(0)
                try:
                    with Tree() as tree:
                        tree.start(argv, stderr=said, **streams)
                        code = tree.wait(self.config.timeout)
                except OSError as error:
                    code = str(error)
                if code != 0:
                    said.seek(0)
                    self.note(said.read() or f"{argv[0]}: {code}".encode())
                    self.why = "its files cannot be copied"
                    raise self.fault(self.reason())


def parse_answer(line: bytes, number: int) -> dict | None:
    """The answer to question ``number`` in a line that may begin with a shell's greeting; else None.

    >>> parse_answer(b'Welcome! {"id": 3, "answer": 7}', 3), parse_answer(b'{"id": 2, "answer": 7}', 3)
    ({'id': 3, 'answer': 7}, None)
    """
    try:
        said = json.loads(line[line.index(b'{"id"') :])
        return said if said["id"] == number and ("answer" in said or "refused" in said) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def resources(config: RunConfig) -> tuple:
    """Device ("cuda" or "cpu"), all cores, and the weakest GPU's compute capability and memory. Raises RunFailed."""
    found = []
    try:
        descriptions = start_machines(config, found)
        gpus = weakest_over_machines([each["weakest"] for each in descriptions])
        return descriptions[0]["device"], machine.cores_of(descriptions), *gpus
    finally:
        for each in found:
            each.close()


def find_answering_hosts(config: RunConfig) -> list[Host]:
    """The machines of HOSTS that answer now, including those not in use."""
    started, found = [], []
    for host in parse(config.hosts):
        with contextlib.suppress(RunFailed):
            each = Machine(host.name, range(1), config, machine.own_address(host.name))
            each.send("unreachable")
            started.append((host, each))
    for host, each in started:
        with contextlib.suppress(RunFailed):
            each.answer()
            found.append(host)
        each.close()
    return found


def run(found: list[Node], run_dir: Path, config: RunConfig, started: float, watch=None, survival=None) -> None:
    """Run a config on its machines, which are added to ``found`` for the caller to close. Raises as supervise.run."""
    mark = secrets.token_hex(8)
    (run_dir / SHARED).write_text(mark)
    try:
        start_machines(config, found, run_dir)
        place(config, found, str(run_dir.resolve()), mark)
    except BaseException:
        while found:
            found.pop().close()
        raise
    ours = {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}
    supervise.run(found, lambda each: each.start(started, ours), run_dir, config.timeout, watch, survival)


def start_machines(config: RunConfig, found: list[Node], run_dir: Path | None = None) -> list[dict]:
    """Start the process on each machine, add it to ``found``, and return their descriptions. Raises RunFailed."""
    rank, asked = 0, {"config": to_dict(config), "ours": machine.describe()}
    for host in config.machines:
        ranks = range(rank, rank + (1 if config.num_processes == 1 else host.slots))
        found.append(Machine(host.name, ranks, config, not found and machine.own_address(host.name), run_dir))
        rank = ranks.stop
    for each, host in zip(found, config.machines, strict=True):
        each.send("look", devices=host.slots, **asked)
    descriptions = [each.answer() for each in found]
    for each, its in zip(found, descriptions, strict=True):
        if its["device"] != descriptions[0]["device"]:
            first = f"{found[0].name} {descriptions[0]['device']}"
            raise each.fault(f"would use {its['device']}, but {first}: leave one of them out, or use DEVICE=cpu")
    return descriptions


def place(config: RunConfig, found: list[Machine], run_dir: str, mark: str) -> None:
    """Assign ranks and addresses, and check that the machines reach each other."""
    first, *others = found
    addresses = [{"iface": "", "address": "127.0.0.1", "port": 0, "listens": 0}]
    if others:
        addresses = [first.ask("address", iface=config.iface, towards=others[0].name, url=config.dist_url)]
        for each in others:
            each.send("address", iface=config.iface, towards=addresses[0]["address"], url=None)
        addresses += [each.answer() for each in others]
    main, pairs = addresses[0], list(zip(found, addresses, strict=True))
    peers = [[each.name, its["address"], its["listens"]] for each, its in pairs]
    for number, (each, its) in enumerate(pairs):
        ranks = each.placement.ranks
        each.placement = Placement(ranks, number, len(found), main["address"], main["port"], each.name, its["address"],
                                   its["iface"], joins=True)  # fmt: skip
        each.send("place", placement={**vars(each.placement), "ranks": [ranks.start, ranks.stop]},
                  others=[peer for peer in peers if peer[0] != each.name], config=to_dict(config), run_dir=run_dir,
                  mark=mark)  # fmt: skip
    for each in found:
        each.folder = each.answer(machine.REACH_S * len(found))
