"""The processes of a training from a Watch's view: this process's rank, and how the parts are combined at the end.

With torch.distributed they meet in the process group's store, with Horovod in a collective that starts when all have
arrived. So a missing rank is named after a time limit, and the script's collectives are not disturbed.
"""

import contextlib
import http.client
import io
import itertools
import os
import pickle
import sys
import time
import zlib
from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.distributed as dist

from bench.observe.probe import NotObserved

# The variables in which a launcher passes the number of processes and the rank of this process.
LAUNCHERS = (
    ("WORLD_SIZE", "RANK"), ("HOROVOD_SIZE", "HOROVOD_RANK"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"), ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)  # fmt: skip
PIECE = 4 << 20  # bytes of one value in a store: torch's limit is 8 MiB
TICK_S = 0.02
LOOKS = 25  # polls of a key, then check whether its rank has ended
STORE_S = 10.0  # for an answer of Horovod's store
serial = [0]  # meetings of this process, in the same order on all ranks


class Ranks:
    """rank, count: of this process. joined: there is a process group. store: their key-value store, if known."""

    def __init__(self):
        self.rank, self.count, self.store, self.joined = 0, 1, None, False
        self.look()

    def look(self) -> None:
        """Detect the initialised backend. The result is kept, because the group may be destroyed later."""
        horovod = sys.modules.get("horovod.torch")
        if dist.is_available() and dist.is_initialized():
            self.rank, self.count, self.joined = dist.get_rank(), dist.get_world_size(), True
            with contextlib.suppress(Exception):  # a private name in torch
                self.store = dist.distributed_c10d._get_default_store()
        elif horovod and horovod.is_initialized():
            self.rank, self.count, self.joined = horovod.rank(), horovod.size(), True
            self.store = self.store or HorovodStore.found()

    def join_over_ranks(self, part, join: Callable[[list], object], limit_s: float, ended: Callable[[int], str]):
        """``join`` of the parts of all ranks; it runs on one rank, and all get the result.

        Every rank calls it. Raises NotObserved, in one line, if another rank does not call it within the limit or has
        ended: ``ended(rank)`` returns the reason in words.
        """
        self.look()
        serial[0] += 1
        if self.count == 1:
            return join([part])
        if self.store is None and "horovod.torch" in sys.modules:
            return self.join_by_collective(part, join, limit_s)
        if self.store is None:
            raise NotObserved("the ranks cannot meet: the process group's store is not found in this version of torch")
        try:
            key = f"bench-watch/{serial[0]}"
            return Meeting(self.store, key, self.rank, self.count, limit_s, ended).join_parts(part, join)
        except NotObserved:
            raise
        except Exception as error:  # the machine with the store is gone, or refuses
            raise NotObserved(f"the ranks cannot meet: {str(error).splitlines()[0]}") from None

    def join_by_collective(self, part, join: Callable, limit_s: float):
        horovod = sys.modules["horovod.torch"]
        if not horovod.is_initialized():
            raise NotObserved("the ranks cannot meet after hvd.shutdown(): call report() before it")
        there = horovod.allreduce_async(torch.zeros(1), name=f"bench-watch-{serial[0]}")
        deadline = time.monotonic() + limit_s
        while not horovod.poll(there):
            if time.monotonic() > deadline:
                raise NotObserved(f"another rank did not call report() within {limit_s:g} s")
            time.sleep(TICK_S)
        horovod.synchronize(there)
        return join(horovod.allgather_object(part))


class HorovodStore:
    """The key-value store of Horovod's rendezvous, with the interface of torch's stores."""

    def __init__(self, host: str, port: int):
        self.host, self.port = host, port

    @classmethod
    def found(cls) -> "HorovodStore | None":
        with contextlib.suppress(KeyError, ValueError):
            return cls(os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
        return None

    def ask(self, method: str, key: str, value: bytes | None = None) -> bytes | None:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=STORE_S)
        try:
            connection.request(method, f"/bench-watch/{key.replace('/', '.')}", value)
            answer = connection.getresponse()
            return answer.read() if answer.status == http.HTTPStatus.OK else None
        finally:
            connection.close()

    def set(self, key: str, value: str | bytes) -> None:
        self.ask("PUT", key, value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes | None:
        return self.ask("GET", key)

    def check(self, keys: list[str]) -> bool:
        return all(self.get(key) is not None for key in keys)

    def clone(self) -> "HorovodStore":
        return self  # every request opens its own connection


class Meeting:
    def __init__(self, store, key: str, rank: int, count: int, limit_s: float, ended: Callable[[int], str]):
        self.store, self.key, self.rank, self.count, self.limit_s = store, key, rank, count, limit_s
        self.deadline, self.ended = time.monotonic() + limit_s, ended

    def join_parts(self, part, join: Callable[[list], object]):
        """The joined result. Raises NotObserved if a rank is late or has ended."""
        others = range(1, self.count)
        if self.rank:
            self.write_part(f"part{self.rank}", part)
            self.deadline += 0.5 * self.limit_s  # rank 0 may have come last and still be working
            result = self.read_part("result", 0)
            self.store.set(f"{self.key}/took{self.rank}", "1")
        else:
            missing = [rank for rank in others if not self.wait(f"part{rank}", rank)]
            if missing:
                result = NotObserved(self.why_not(missing))
            else:
                result = join([part, *(self.read_part(f"part{rank}", rank) for rank in others)])
            self.write_part("result", result)
            self.deadline = time.monotonic() + min(5.0, self.limit_s)
            for rank in others:  # the rank with the store must not exit before all have read it
                self.wait(f"took{rank}", rank)
        if isinstance(result, NotObserved):
            raise result
        return result

    def wait(self, name: str, rank: int) -> bool:
        looks = itertools.count(1)
        while not self.store.check([f"{self.key}/{name}"]):
            if time.monotonic() > self.deadline or (next(looks) % LOOKS == 0 and self.ended(rank)):
                return False
            time.sleep(TICK_S)
        return True

    def why_not(self, ranks: list[int]) -> str:
        if ended := [f"rank {rank} has ended ({why})" for rank in ranks if (why := self.ended(rank))]:
            return ", ".join(ended)
        names = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        return f"{names} did not call report() within {self.limit_s:g} s"

    def write_part(self, name: str, item) -> None:
        data = zlib.compress(pickle.dumps(item), 1)
        pieces = [data[at : at + PIECE] for at in range(0, len(data), PIECE)]
        for number, piece in enumerate(pieces):
            self.store.set(f"{self.key}/{name}/{number}", piece)
        self.store.set(f"{self.key}/{name}", str(len(pieces)))

    def read_part(self, name: str, rank: int):
        if not self.wait(name, rank):
            raise NotObserved(self.why_not([rank]))
        pieces = int(self.store.get(f"{self.key}/{name}"))
        data = b"".join(self.store.get(f"{self.key}/{name}/{number}") for number in range(pieces))
        return Unpickler(io.BytesIO(zlib.decompress(data))).load()


# The names in a pickle of plain values and arrays.
ARRAYS = (np.zeros(0).__reduce__()[0], np.zeros(0).__reduce_ex__(5)[0], np.float64(0).__reduce__()[0], np.ndarray,
          np.dtype)  # fmt: skip
PICKLED_CLASSES = (*ARRAYS, NotObserved, set, frozenset, range, complex)
PICKLED = {(each.__module__, each.__qualname__): each for each in PICKLED_CLASSES}


class Unpickler(pickle.Unpickler):
    """Reads only numbers, texts and arrays from other ranks: anybody who can reach the store can write a pickle there,
    and a pickle may call any function that it names."""

    def find_class(self, module: str, name: str):
        if (module, name) not in PICKLED:
            raise pickle.UnpicklingError(f"another rank's part contains {module}.{name}, which is not allowed")
        return PICKLED[module, name]


def launched(environ: Mapping[str, str] = os.environ) -> tuple[str, int, int] | None:
    """The variable that shows a launcher of several processes, their number, and this process's rank.

    >>> launched({"WORLD_SIZE": "2", "RANK": "1"}), launched({"WORLD_SIZE": "1"})
    (('WORLD_SIZE', 2, 1), None)
    """
    for variable, number in LAUNCHERS:
        with contextlib.suppress(KeyError, ValueError):
            if int(environ[variable]) > 1:
                return variable, int(environ[variable]), int(environ.get(number, 0))
    return None
