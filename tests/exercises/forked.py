"""Stand-ins for ``course.run_on_ranks`` whose ranks are forked from the process that runs the cells.

There torch is imported already, so a call takes a fraction of a second. Fresh processes have separate tests, and
`make course check` runs every set on them.
"""

import multiprocessing
import os
import pickle
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait

import cloudpickle
import numpy
from torch import distributed as dist

from bench.course import start
from bench.errors import RunFailed
from tests.meeting import Meeting

FORK = multiprocessing.get_context("fork")


def run_on_ranks(function: Callable, num_ranks: int = 2, *arguments, engine="torch", timeout=60.0, **options) -> list:
    """The results by rank. Raises RunFailed with what a rank raises, or when one is gone or not back in time."""
    folder, deadline, results, ends, processes = tempfile.TemporaryDirectory(), time.monotonic() + timeout, {}, {}, []
    store, meeting = f"file://{folder.name}/store", Meeting(num_ranks) if engine == "horovod" else None
    try:
        for rank in range(num_ranks):
            reading, writing = FORK.Pipe(duplex=False)
            own = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
            if meeting:
                own |= {f"HOROVOD_{name}": own[name] for name in own} | meeting.variables()
            own["WORLD_SIZE"] = str(num_ranks)
            processes.append(FORK.Process(target=live, args=(writing, own, function, arguments, engine, store)))
            processes[-1].start()
            writing.close()
            ends[reading] = rank
        while ends:
            ready = wait(list(ends), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RunFailed(f"ranks {sorted(ends.values())} are not back within {timeout:g} s")
            for end in ready:
                rank = ends.pop(end)
                results[rank] = received(end, rank)
    finally:
        for process in processes:
            process.kill()
            process.join()
        folder.cleanup()
        if meeting:
            meeting.close()
    return [results[rank] for rank in range(num_ranks)]


def alone(function: Callable, num_ranks: int = 2, *arguments, engine: str = "torch", **options) -> None:
    """Run on one rank, which is enough to see that an answer is missing: the blank raises an error. Never returns:
    raises RunFailed with that error, or because there was none."""
    run_on_ranks(function, 1, *arguments, engine=engine, **options)
    raise RunFailed("nothing was raised")


def received(end: Connection, rank: int):
    with end:
        try:
            error, result = pickle.loads(end.recv_bytes())
        except EOFError:
            raise RunFailed(f"rank {rank} ended before the function returned") from None
    if error:
        raise RunFailed(f"rank {rank} raised {error}")
    return result


def live(writing: Connection, own: dict, function: Callable, arguments: tuple, engine: str, url: str) -> None:
    os.environ.update(own)
    numpy.random.seed()  # Python's own random numbers differ in a copy, numpy's would not
    try:
        if engine == "torch":  # by a file: a port that is free may be somebody else's by the time it is listened at
            dist.init_process_group(init_method=url, rank=int(own["RANK"]), world_size=int(own["WORLD_SIZE"]))
        else:
            start.join(engine)
        said = cloudpickle.dumps((None, function(*arguments)))
        start.destroy_group(engine)
    except BaseException as error:
        said = pickle.dumps((f"{type(error).__name__}: {error}", None))
    writing.send_bytes(said)  # ``send`` would leave a tensor in memory that ends with this process
