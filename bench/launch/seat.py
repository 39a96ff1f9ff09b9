"""Which rank this process is in an external launcher (torchrun, srun, horovodrun, mpirun), by its environment
variables. A single process is not a group."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bench.errors import UserError

FIRST_PORT, PORTS = 20000, 10000  # of what Slurm starts, which names no port


class Launcher(NamedTuple):
    """size: the variable with the number of processes, which identifies the launcher. needed: variable by Seat field.
    engine: the equivalent launcher in config/modes.py."""

    size: str
    engine: str
    needed: dict[str, str]


LAUNCHERS = {
    "torchrun": Launcher("WORLD_SIZE", "torchrun", {
        "rank": "RANK", "local_rank": "LOCAL_RANK", "local_world_size": "LOCAL_WORLD_SIZE", "node_rank": "GROUP_RANK",
        "address": "MASTER_ADDR", "port": "MASTER_PORT"}),
    "horovodrun": Launcher("HOROVOD_SIZE", "horovodrun", {
        "rank": "HOROVOD_RANK", "local_rank": "HOROVOD_LOCAL_RANK", "local_world_size": "HOROVOD_LOCAL_SIZE",
        "node_rank": "HOROVOD_CROSS_RANK", "address": "HOROVOD_GLOO_RENDEZVOUS_ADDR",
        "port": "HOROVOD_GLOO_RENDEZVOUS_PORT"}),
    "mpirun": Launcher("OMPI_COMM_WORLD_SIZE", "horovodrun", {
        "rank": "OMPI_COMM_WORLD_RANK", "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
        "local_world_size": "OMPI_COMM_WORLD_LOCAL_SIZE"}),
    "srun": Launcher("SLURM_STEP_NUM_TASKS", "torchrun", {
        "rank": "SLURM_PROCID", "local_rank": "SLURM_LOCALID", "node_rank": "SLURM_NODEID",
        "local_world_size": "SLURM_STEP_TASKS_PER_NODE", "address": "SLURM_STEP_NODELIST", "port": "SLURM_JOB_ID"}),
}  # fmt: skip


@dataclass(frozen=True)
class Seat:
    """node_rank: None if unknown. address, port: rank 0's machine or horovodrun's server; "" and 0 under mpirun."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int | None = None
    address: str = ""
    port: int = 0

    @property
    def engine(self) -> str:
        return LAUNCHERS[self.launcher].engine

    def variables(self) -> dict[str, str]:
        """What torch's ``env://`` rendezvous reads."""
        found = {"RANK": self.rank, "LOCAL_RANK": self.local_rank}
        found |= {"WORLD_SIZE": self.world_size, "LOCAL_WORLD_SIZE": self.local_world_size}
        if self.engine == "torchrun":
            found |= {"MASTER_ADDR": self.address, "MASTER_PORT": self.port}
        return {name: str(value) for name, value in found.items()}


def seat_of(environ: Mapping[str, str]) -> Seat | None:
    """The seat in an environment; None if no launcher started several processes. Of nested launchers (torchrun in srun)
    the inner one. Raises UserError if variables are missing or invalid.

    >>> seat_of({"WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
    ...          "MASTER_ADDR": "node1", "MASTER_PORT": "29500"})  # doctest: +NORMALIZE_WHITESPACE
    Seat(launcher='torchrun', rank=5, world_size=8, local_rank=1, local_world_size=4, node_rank=1, address='node1',
         port=29500)
    >>> seat_of({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    ...          "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_JOB_ID": "123456",
    ...          "SLURM_STEP_ID": "0"})  # doctest: +NORMALIZE_WHITESPACE
    Seat(launcher='srun', rank=3, world_size=4, local_rank=1, local_world_size=2, node_rank=1, address='gpu07',
         port=23456)
    >>> seat_of({"WORLD_SIZE": "1", "RANK": "0"}), seat_of({})
    (None, None)
    """
    refusals = []
    for name, launcher in LAUNCHERS.items():
        if environ.get(launcher.size, "1") not in ("0", "1"):
            try:
                return read(name, launcher, environ)
            except UserError as error:  # one launcher's leftover variable does not hide another's seat
                refusals.append(error)
    if refusals:
        raise refusals[0]
    return None


def read(name: str, launcher: Launcher, environ: Mapping[str, str]) -> Seat:
    head = f"{name} has started {environ[launcher.size]} processes ({launcher.size}), but"
    if missing := [variable for variable in launcher.needed.values() if not environ.get(variable)]:
        raise UserError(f"{head} {missing[0]} is not set: unset {launcher.size} if it is a leftover")
    given = {part: environ[variable] for part, variable in launcher.needed.items()}
    try:
        if name == "srun":
            given |= of_slurm(environ, given)
        numbers = {part: int(text) for part, text in given.items() if part != "address"}
        seat = Seat(name, world_size=int(environ[launcher.size]), address=given.get("address", ""), **numbers)
    except (ValueError, IndexError):
        values = " ".join(f"{variable}={environ[variable]}" for variable in launcher.needed.values())
        raise UserError(f"{head} its variables cannot be read: {values}") from None
    if not (0 <= seat.local_rank < seat.local_world_size <= seat.world_size and 0 <= seat.rank < seat.world_size):
        local = f"local rank {seat.local_rank} of {seat.local_world_size}"
        raise UserError(
            f"{head} rank {seat.rank}, {local} is inconsistent: check whether variables of two launchers are set"
        )
    return seat


def of_slurm(environ: Mapping[str, str], given: dict[str, str]) -> dict[str, str]:
    """Slurm's values as torchrun's. MASTER_ADDR and MASTER_PORT win; else the step's first host, and a port by job and
    step, so that jobs on one machine have different ones."""
    port = FIRST_PORT + (int(given["port"]) + 101 * int(environ.get("SLURM_STEP_ID", "0"))) % PORTS
    return {
        "local_world_size": str(tasks_per_node(given["local_world_size"])[int(given["node_rank"])]),
        "address": environ.get("MASTER_ADDR") or first_host(given["address"]),
        "port": environ.get("MASTER_PORT") or str(port),
    }


def tasks_per_node(text: str) -> list[int]:
    """Processes per machine in Slurm's notation. Raises ValueError.

    >>> tasks_per_node("2(x3),1"), tasks_per_node("4")
    ([2, 2, 2, 1], [4])
    """
    found = []
    for entry in text.split(","):
        count, _, times = entry.partition("(x")
        found += [int(count)] * (int(times.rstrip(")")) if times else 1)
    return found


def first_host(names: str) -> str:
    """The first machine of a list in Slurm's notation, where rank 0 is.

    >>> first_host("gpu[07-09,12]"), first_host("n3,gpu[1-2]"), first_host("rack[1-2]node[3-4]"), first_host("n3")
    ('gpu07', 'n3', 'rack1node3', 'n3')
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", names)[0]  # a comma in brackets does not end a name
    return re.sub(r"\[([^-,\]]*)[^\]]*\]", r"\1", first)
