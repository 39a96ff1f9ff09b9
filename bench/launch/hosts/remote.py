"""HOSTS: one node for each machine, asked through its agent. REMOTE starts the agents; this machine's own needs none.

No file is shared: an agent sends what its ranks write, and it is written into the run's folder here, where the
supervision reads it as of a run on one machine. Every question has a limit, and a machine that is silent for too long
is lost: the run is ended then, and its line names that machine.
"""

import base64
import contextlib
import json
import os
import queue
import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

from bench.config.hosts import SSH, Host, parse
from bench.config.modes import MODES
from bench.config.options import RunConfig, to_dict
from bench.errors import RunFailed, printable
from bench.files import LATEST, PROJECT
from bench.launch import machine
from bench.launch.command import OF_ENGINES
from bench.launch.devices import weakest_of
from bench.launch.node import Node
from bench.launch.placement import Placement
from bench.measure import steady, waiting
from bench.process.tree import GRACE_S, Tree

ANSWER_S = 60.0  # for an answer, and for any sign of life
STACKS_S = 60.0  # for the stacks of all ranks, which a busy machine is slow to write
WORD_S = 1.0  # between two words to an agent, which ends when it hears none
MOST_LINE = 2**24  # bytes of a line of an agent
MOST_SAID = 500  # letters of a line that is shown
CHUNK = 2**18  # bytes of a file in one question
SAME = ("Python", "torch", "code of bench")  # on all machines
# Variables of this machine's environment that the other machines' ranks get, too: how an engine is to behave.
FORWARDED = ("BENCH_", "OMP_", "GOMP_", "MKL_", "KMP_", "GLOO_", "NCCL_", "HOROVOD_", "TORCH_", "PYTORCH_", "MALLOC_")
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # where they are set here, they count on all machines
REMEDY = {
    "Python": "use the same Python there, at the same path",
    "torch": "install the same torch there (`make setup`)",
    "code of bench": "bring the same code there (git pull, rsync)",
    "Horovod": "run `bench install-horovod` there",
}


# The form of an answer, by its question: a type, a list of one form, or a dict with the form of each key. What is not
# named here answers nothing.
ANSWERS = {
    "describe": {"Python": str, "torch": str | None, "Horovod": str | None, "code of bench": str, "cores": int | float,
                 "cpus": [int], "boot": str | None},
    "device": {"device": str, "weakest": list}, "address": {"iface": str, "address": str}, "listen": int, "reach": str,
    "unreachable": str, "own_name": str, "port": int, "command": list, "gone": [bool], "stopped": [bool],
    "places": [dict | None], "out_of_memory": str, "end": int | None,
}  # fmt: skip


def fits(question: str, answer) -> bool:
    """Whether an answer has the form of one.

    >>> fits("gone", [True, False]), fits("gone", [None]), fits("start", None), fits("address", {"iface": "lo"})
    (True, False, True, False)
    """
    return has_form(ANSWERS.get(question, type(None)), answer)


def has_form(form, item) -> bool:
    """The same of a form."""
    if isinstance(form, dict):
        return isinstance(item, dict) and all(has_form(inner, item.get(key)) for key, inner in form.items())
    if isinstance(form, list):
        return isinstance(item, list) and all(has_form(form[0], each) for each in item)
    return isinstance(item, form)


class Channel:
    """The connection to the agent of one machine. rank: the first of those that are to run there."""

    def __init__(self, name: str, config: RunConfig, rank: int, here: bool):
        self.name, self.rank, self.here, self.config = name, rank, here, config
        self.limit, self.answers, self.number, self.why = min(ANSWER_S, config.timeout), queue.Queue(), 0, ""
        self.lines, self.writing, self.code = deque(maxlen=20), threading.Lock(), None
        self.heard, self.spoke, self.grown, self.question = time.monotonic(), 0.0, 0.0, ""
        self.run_dir = None  # where what its ranks write is written to
        argv = command(None if here else config.remote or SSH, name)
        self.tree, pipe = Tree(), subprocess.PIPE
        try:
            self.tree.start(argv, os.environ | steady.variables(), stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            raise fault(self, f"cannot be reached: {argv[0]} does not run ({error.strerror}): check REMOTE") from None
        self.process = self.tree.process
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self.complaints, self.listen)]
        for thread in self.threads:
            thread.start()

    def complaints(self) -> None:
        """Keep the last lines of what REMOTE and the agent complain of."""
        with self.process.stderr as stream:
            while line := stream.readline(MOST_LINE):
                self.note(line)

    def note(self, line: bytes | str) -> None:
        """Keep what was said, as far as a person would read it."""
        said = line if isinstance(line, str) else line[: 4 * MOST_SAID].decode(errors="replace")
        self.lines.append(printable(said)[:MOST_SAID])

    def listen(self) -> None:
        """Take what the agent says until it says no more. Another program may talk there, as some shells greet: only
        what an agent says is a sign of life."""
        with self.process.stdout as stream:
            while line := stream.readline(MOST_LINE):
                try:
                    understood = self.take(json.loads(line))
                except (ValueError, TypeError, KeyError, RecursionError):
                    understood = False
                except OSError as error:  # the disk is full, or the run's folder is gone
                    self.note(str(error))
                    continue
                if not understood:
                    self.note(line)
                    continue
                self.heard = time.monotonic()
                if self.heard > self.spoke + WORD_S:
                    self.spoke = self.heard
                    self.say(b"\n")
        self.process.wait()
        self.threads[0].join(WORD_S)  # what it complained of
        self.why = self.why or "ended"
        self.answers.put(None)

    def take(self, message) -> bool:
        """What one line says; whether an agent says it so."""
        if not isinstance(message, dict):
            return False
        if "id" in message:
            is_answer = type(message["id"]) is int and ("answer" in message or isinstance(message["refused"], str))
            if is_answer:
                self.answers.put(message)
            return is_answer
        if "file" in message:
            return self.write(message)
        if "code" in message and type(message["code"]) is int:
            self.code = message["code"]
            return True
        return message.get("alive") is True

    def write(self, message: dict) -> bool:
        """A piece of a file of the run's folder; whether it is one."""
        path, at = (self.run_dir / message["file"]).resolve(), message["at"]
        if not path.is_relative_to(self.run_dir.resolve()) or type(at) is not int:
            return False
        if path.parent != self.run_dir.resolve():
            path.parent.mkdir(parents=True, exist_ok=True)
        data = base64.b64decode(message["data"])
        if "age_s" in message:  # its moment by this machine's clock, so that the first of all ranks' can be told
            data = json.dumps(json.loads(data) | {"time": steady.now() - message["age_s"]}).encode()
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
            size = os.fstat(file.fileno()).st_size
            if not 0 <= at <= size:
                return False
            file.seek(at)
            file.write(data)
        if at + len(data) > size:
            self.grown = time.monotonic()
        return True

    def say(self, line: bytes) -> None:
        """Write a line, to a machine that may be gone: ``listen`` notices that."""
        with contextlib.suppress(OSError, ValueError), self.writing:
            self.process.stdin.write(line)
            self.process.stdin.flush()

    def send(self, question: str, **arguments) -> None:
        """Ask; ``answer`` waits for what is said."""
        self.number, self.question = self.number + 1, question
        self.say(json.dumps({"id": self.number, "ask": question, "with": arguments}).encode() + b"\n")

    def answer(self, limit: float | None = None):
        """What the agent says to the last question. Raises RunFailed when it refuses, or has not answered after so
        long; while the files that it sends grow, it may take longer."""
        limit, asked = limit or self.limit, time.monotonic()
        while not self.why or not self.answers.empty():
            until = max(asked, self.grown) + limit
            try:
                said = self.answers.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                if time.monotonic() > max(asked, self.grown) + limit:
                    self.why = f"does not answer within {limit:g} s"
                continue
            if said and said["id"] == self.number:
                if "refused" in said:
                    raise fault(self, said["refused"][:MOST_SAID])
                if not fits(self.question, said["answer"]):
                    self.why = "is no agent"
                    raise fault(self, f"answers to {self.question} what no agent does: {repr(said['answer'])[:100]}; "
                                "is it the same code there, and does REMOTE start nothing else?")  # fmt: skip
                return said["answer"]
        raise fault(self, self.lost())

    def ask(self, question: str, limit: float | None = None, **arguments):
        """``send`` and ``answer``."""
        self.send(question, **arguments)
        return self.answer(limit)

    def lost(self) -> str:
        """Why it can be asked no more, with what to do; "" while it can."""
        if not self.why and time.monotonic() > self.heard + self.limit:
            self.why = f"has said nothing for {self.limit:g} s"
        if not self.why:
            return ""
        how = "its agent" if self.here else f"`{(self.config.remote or SSH).replace('{host}', self.name)}`"
        said = f": {self.lines[-1]}" if self.lines else ""
        if self.why != "ended":
            return (
                f"{self.why} ({how}{said}): check that the machine is up and can be reached, or leave it out of HOSTS"
            )
        if self.run_dir:
            code = self.process.poll()
            ended = "" if code is None else f" by signal {-code}" if code < 0 else f" with exit code {code}"
            return f"{how} has ended{ended}{said}: check that the machine is up, and its memory"
        needs = f"this project and its Python are there as {PROJECT} and {sys.executable}"
        return f"{how} starts no agent there{said}; check that the machine is up, its name, REMOTE, and that {needs}"

    def close(self) -> None:
        """End the agent, which ends what it has started."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.tree.wait(0.2 if self.why else 3 * GRACE_S)
        self.tree.end()
        for thread in self.threads:
            thread.join(GRACE_S)


class Remote(Node):
    """A node that is asked through its machine's agent."""

    def __init__(self, placement: Placement, run_dir: Path, channel: Channel):
        super().__init__(placement, run_dir)
        self.channel, channel.run_dir = channel, run_dir

    def command(self, config: RunConfig, started: float) -> tuple[list[str], dict]:
        ranks = self.placement.ranks
        place = {**vars(self.placement), "ranks": [ranks.start, ranks.stop]}
        folder = str(self.run_dir.resolve()) if self.channel.here else None
        argv, environment = self.channel.ask("command", config=to_dict(config), placement=place, run_dir=folder,
                                             since_s=steady.now() - started)  # fmt: skip
        ours = {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}
        own = {name: value for name, value in ours.items() if name in INTERFACES and not config.iface}
        if not waiting.variables(ours):  # the user's own policy counts on all machines
            environment = {name: value for name, value in environment.items() if name not in waiting.BOUNDED}
        if config.elastic and (self.run_dir / LATEST).exists() and not self.channel.here:
            self.bring(LATEST)
        return argv, {name: value for name, value in ours.items() if not OF_ENGINES.fullmatch(name)} | environment | own

    def bring(self, name: str) -> None:
        """A file of the run's folder, from here to there."""
        with (self.run_dir / name).open("rb") as file:
            while piece := file.read(CHUNK):
                self.channel.ask("take", name=name, data=base64.b64encode(piece).decode())

    def start(self, argv: list[str], environment: dict) -> None:
        self.channel.ask("start", argv=argv, environment=environment)

    def wait(self, seconds: float) -> int | None:
        until = time.monotonic() + seconds
        while self.channel.code is None and not self.lost() and time.monotonic() < until:
            time.sleep(0.02)
        return self.channel.code

    def lost(self) -> str:
        why = self.channel.lost()
        return f"{self.placement.host}: {why}" if why else ""

    def asked(self, question: str, otherwise, limit: float | None = None):
        """What the agent answers; of a machine that is lost, ``otherwise``."""
        try:
            return otherwise if self.lost() else self.channel.ask(question, limit)
        except RunFailed:
            return otherwise

    def unreachable(self) -> str:
        why = self.asked("unreachable", "", machine.REACH_S * self.placement.count + ANSWER_S)
        return f"{self.placement.host} {why}" if why else ""

    def gone(self) -> list[bool]:
        return self.asked("gone", [False] * len(self.placement.ranks))

    def out_of_memory(self) -> str:
        return self.asked("out_of_memory", "")

    def stopped(self) -> list[bool]:
        return self.asked("stopped", [False] * len(self.placement.ranks))

    def places(self) -> list[dict | None]:
        return self.asked("places", [None] * len(self.placement.ranks), STACKS_S)

    def end(self) -> None:
        """End the ranks there, and have what they have left here."""
        code = self.asked("end", None)
        self.channel.code = self.channel.code if code is None else code

    def close(self) -> None:
        self.channel.close()


def nodes(config: RunConfig, run_dir: Path) -> list[Node]:
    """A node for each machine that takes part, after a look at all of them: same versions, devices, and that they reach
    each other. Raises RunFailed, which names the machine and what to do."""
    channels = connect(config)
    try:
        survey(config, channels)
        found = places(config, channels)
        return [Remote(place, run_dir, channel) for place, channel in zip(found, channels, strict=True)]
    except BaseException:
        close(channels)
        raise


def resources(config: RunConfig) -> tuple:
    """What the machines of HOSTS give to a run: "cuda" or "cpu", cores in all, those of one machine once, and the
    weakest GPU's compute capability and memory. Raises RunFailed, which names the machine and what to do."""
    channels = connect(config)
    try:
        return survey(config, channels)
    finally:
        close(channels)


def answering(config: RunConfig) -> list[Host]:
    """The machines of HOSTS whose agents answer now: all of them, also those that take no part yet."""
    channels, found = [], []
    try:
        for host in parse(config.hosts):
            with contextlib.suppress(RunFailed):
                channels.append((host, Channel(host.name, config, 0, machine.own_address(host.name))))
        for _, channel in channels:
            channel.send("describe")
        for host, channel in channels:
            with contextlib.suppress(RunFailed):
                channel.answer()
                found.append(host)
    finally:
        close([channel for _, channel in channels])
    return found


def connect(config: RunConfig) -> list[Channel]:
    """An agent on each machine that takes part."""
    channels, rank = [], 0
    try:
        for host in config.machines:
            here = not channels and machine.own_address(host.name)
            channels.append(Channel(host.name, config, rank, here))
            rank += host.slots
    except BaseException:
        close(channels)
        raise
    return channels


def close(channels: list[Channel]) -> None:
    """End the agents, all at once."""
    for channel in channels:
        with contextlib.suppress(OSError):
            channel.process.stdin.close()
    for channel in channels:
        channel.close()


def ask_all(channels: list[Channel], question: str, **arguments) -> list:
    """What each machine answers to one question; they think at the same time. An argument may be a list, of which each
    gets its own."""
    for number, channel in enumerate(channels):
        own = {name: value[number] if isinstance(value, list) else value for name, value in arguments.items()}
        channel.send(question, **own)
    return [channel.answer() for channel in channels]


def survey(config: RunConfig, channels: list[Channel]) -> tuple:
    """Are all machines equal, and do they have the devices? As ``resources`` gives it."""
    ours = machine.describe()
    found = ask_all(channels, "describe")
    for channel, theirs in zip(channels, found, strict=True):
        for name in (*SAME, *(["Horovod"] if MODES[config.mode].needs else [])):
            if theirs[name] != ours[name]:
                there, here = theirs[name] or "not installed", ours[name] or "not installed"
                raise fault(channel, f"{name} is {there} there and {here} here: {REMEDY[name]}")
    slots = [host.slots for host in config.machines]
    given = ask_all(channels, "device", config=to_dict(config), devices=slots)
    ours = given[0]["device"]
    for channel, theirs in zip(channels, given, strict=True):
        if theirs["device"] != ours:
            raise fault(channel, f"would use {theirs['device']}, and {channels[0].name} {ours}: leave one of them out, "
                        "or use DEVICE=cpu")  # fmt: skip
    return ours, cores_of(found), *weakest_of([theirs["weakest"] for theirs in given])


def cores_of(found: list[dict]) -> int:
    """The cores of all machines together; of nodes that are one machine, by their boot, each core once.

    >>> one, other = {"boot": "a", "cores": 2, "cpus": [0, 1]}, {"boot": "b", "cores": 2, "cpus": [0, 1]}
    >>> cores_of([one, other]), cores_of([one, one]), cores_of([one | {"cores": 1, "cpus": [n]} for n in (0, 1)])
    (4, 2, 2)
    """
    total = 0
    for boot in dict.fromkeys(theirs["boot"] for theirs in found):
        same = [theirs for theirs in found if theirs["boot"] == boot]
        cpus = {cpu for theirs in same for cpu in theirs["cpus"]}
        given = sum(theirs["cores"] for theirs in same)
        total += min(given, len(cpus)) if boot and cpus else given
    return total


def places(config: RunConfig, channels: list[Channel]) -> list[Placement]:
    """Where each node stands, with the addresses by which they talk; each has been seen to reach the others."""
    count, taken = len(channels), []
    for host in config.machines:
        first = taken[-1].stop if taken else 0
        taken.append(range(first, first + (1 if config.num_processes == 1 else host.slots)))
    if count == 1:
        return [Placement(taken[0], host=channels[0].name)]
    main = channels[0].ask("address", iface=config.iface, towards=channels[1].name)
    others = ask_all(channels[1:], "address", iface=config.iface, towards=main["address"])
    found = [main, *others]
    ports = ask_all(channels, "listen", address=[own["address"] for own in found])
    peers = [[c.name, own["address"], port] for c, own, port in zip(channels, found, ports, strict=True)]
    for channel, own in zip(channels, found, strict=True):
        channel.send("reach", own=own["address"], others=[peer for peer in peers if peer[0] != channel.name])
    for channel, own in zip(channels, found, strict=True):
        if why := channel.answer(machine.REACH_S * count + channel.limit):
            raise fault(channel, f"{why}: name another interface as IFACE (this is {own['iface']}), or open the way "
                        "between them")  # fmt: skip
    if MODES[config.mode].needs:
        names = ask_all(channels, "own_name", address=[own["address"] for own in found])
        for channel, why in zip(channels, names, strict=True):
            if why:
                raise fault(channel, why)
    port = channels[0].ask("port", address=main["address"], url=config.dist_url)
    return [
        Placement(taken[number], number, count, main["address"], port, channels[number].name, **found[number])
        for number in range(count)
    ]


def command(remote: str | None, name: str) -> list[str]:
    """What starts the agent of a machine. remote: REMOTE; None on this machine.

    >>> command("ssh -p 22 {host}", "node2")[:5]
    ['ssh', '-p', '22', 'node2', 'env']
    """
    agent = ["env", f"PYTHONPATH={PROJECT}", sys.executable, "-m", "bench.launch.agent", os.getcwd()]
    if remote is None:
        return agent
    words = [word.replace("{host}", name) for word in shlex.split(remote)]
    # ssh hands its words to a shell there, where others start the command as it is.
    return [*words, *(map(shlex.quote, agent) if Path(words[0]).name == "ssh" else agent)]


def fault(channel: Channel, why: str) -> RunFailed:
    """A RunFailed that names the machine."""
    message = f"host {channel.name} (rank {channel.rank}): {why}"
    error = RunFailed(message)
    error.failure = {"rank": channel.rank, "kind": "launcher", "message": message, "traceback": ""}
    return error
