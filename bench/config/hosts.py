"""HOSTS, ``node1:4,node2:4``, a file of such lines, or ``slurm``: the machines of a run, with their numbers of devices.
It imports no torch."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from bench import files
from bench.errors import UserError

SLURM = "slurm"
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10 {host}"  # default of REMOTE: it does not ask for a password
# The same for HOSTS=slurm: another step of the allocation, on all of its cores on that machine.
SRUN = "srun --overlap --nodes=1 --ntasks=1 --cpu-bind=none --unbuffered --nodelist={host}"
MOST_BYTES = 2**20  # of a file of machines
SCONTROL_S = 20.0  # time limit for the names of an allocation's machines
NAME = r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
LINE = re.compile(rf"(?P<name>{NAME})(:(?P<number>\d{{1,6}})|\s+slots\s*=\s*(?P<slots>\d{{1,6}}))?")


class Host(NamedTuple):
    name: str  # or address
    slots: int  # devices


def parse(text: str) -> list[Host]:
    """The machines of a list; one without a number has one device."""
    hosts = []
    for entry in text.split(","):
        found = LINE.fullmatch(entry.strip())
        if not found:
            wrong = f"{entry.strip() or 'an empty name'} is not a machine with its number of devices"
            raise UserError(f"HOSTS={text}: {wrong}: write node1:4,node2:4, a file of such lines, or slurm")
        hosts.append(Host(found["name"], int(found["number"] or found["slots"] or 1)))
    for host in hosts:
        if host.slots < 1:
            raise UserError(f"HOSTS={text}: {host.name} has 0 devices: write at least 1, or leave it out")
        if [other.name for other in hosts].count(host.name) > 1:
            raise UserError(f"HOSTS={text} names {host.name} twice: write it once, as {host.name}:{host.slots * 2}")
    return hosts


def written_out(text: str, environment: Mapping[str, str]) -> str:
    if text == SLURM:
        hosts = of_slurm(environment)
    elif "/" in text or Path(text).is_file():
        hosts = of_file(Path(text).expanduser())
    else:
        hosts = parse(text)
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)


def of_file(path: Path) -> list[Host]:
    """The machines of a file, one per line, ``node1:4`` or ``node1 slots=4``; # begins a comment."""
    try:
        text = files.read_regular_file(path, MOST_BYTES).decode()
        lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UserError(f"HOSTS={path} cannot be read ({why}): name a file of lines such as node1:4") from None
    if not any(lines):
        raise UserError(f"HOSTS={path} contains no machine: write lines such as node1:4")
    return parse(",".join(filter(None, lines)))


def of_slurm(environment: Mapping[str, str]) -> list[Host]:
    """The machines of the current Slurm allocation, with their numbers of GPUs, else tasks."""
    nodes = environment.get("SLURM_JOB_NODELIST")
    if not nodes:
        raise UserError("HOSTS=slurm needs an allocation (salloc, sbatch): there is no SLURM_JOB_NODELIST here")
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SCONTROL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"HOSTS=slurm: scontrol does not run ({error}): write HOSTS=node1:4,node2:4") from None
    if done.returncode or not done.stdout.split():
        raise UserError(f"HOSTS=slurm: `scontrol show hostnames {nodes}` returned no machine: {done.stderr.strip()}")
    names = done.stdout.split()
    slots = slots_of_slurm(environment, len(names))
    return parse(",".join(f"{name}:{number}" for name, number in zip(names, slots, strict=True)))


def slots_of_slurm(environment: Mapping[str, str], count: int) -> list[int]:
    """The devices of each of ``count`` machines, from Slurm's variables: GPUs if they were requested, else tasks.

    >>> slots_of_slurm({"SLURM_TASKS_PER_NODE": "4(x2),1"}, 3)
    [4, 4, 1]
    >>> slots_of_slurm({"SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_GPUS_PER_NODE": "a100:8"}, 2)
    [8, 8]
    """
    gpus = re.fullmatch(r"(?:[^:,]+:)?(\d+)", environment.get("SLURM_GPUS_PER_NODE", ""))
    if gpus:
        return [int(gpus[1])] * count
    tasks, slots = environment.get("SLURM_TASKS_PER_NODE", f"1(x{count})"), []
    for part in tasks.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        slots += [int(found[1])] * int(found[2] or 1) if found else []
    if len(slots) != count:
        raise UserError(f"HOSTS=slurm: SLURM_TASKS_PER_NODE={tasks} for {count} machines: write HOSTS=node1:4,node2:4")
    return slots


def share(hosts: list[Host], num_devices: int) -> list[Host] | None:
    """The machines to use, each with its number of devices: only the first if it has enough, else whole machines in
    order. None for an impossible number.

    >>> hosts = parse("a:2,b:2,c:2")
    >>> [[(host.name, host.slots) for host in share(hosts, n)] for n in (1, 2, 4)], share(hosts, 3)
    ([[('a', 1)], [('a', 2)], [('a', 2), ('b', 2)]], None)
    """
    if num_devices <= hosts[0].slots:
        return [Host(hosts[0].name, num_devices)]
    for count in range(2, len(hosts) + 1):
        if sum(host.slots for host in hosts[:count]) == num_devices:
            return hosts[:count]
    return None


def possible(hosts: list[Host]) -> list[int]:
    """The numbers of devices that ``share`` accepts."""
    return [*range(1, hosts[0].slots), *(sum(host.slots for host in hosts[: n + 1]) for n in range(len(hosts)))]


def where(config) -> str:
    words = [f"{host.name} ({host.slots} device{'s' if host.slots > 1 else ''})" for host in config.machines]
    named = " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
    return f"On {named}, reached by `{config.remote or SSH}`{f', over {config.iface}' if config.iface else ''}."
