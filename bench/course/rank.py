"""One rank of ``run_on_ranks``: joins the others, calls the function, leaves its result."""

import gc
import linecache
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

from bench.errors import UserError
from bench.process.guard import Guard
from bench.process.heartbeat import StatusWriter


def main() -> None:
    """``python -m bench.course.rank RUN_DIR``, with a rank in the environment."""
    gc.disable()  # until torch is imported: see bench/training/task.py
    live(Path(sys.argv[1]), int(os.environ.get("RANK", os.environ.get("HOROVOD_RANK", "0"))))


def live(run_dir: Path, rank: int, before: Callable[[Path, int], None] | None = None) -> None:
    """Never returns: the guard ends the process. before: called before the rank joins the others."""
    with Guard(run_dir, rank, in_log=False) as guard:  # the notebook shows the first error only
        import cloudpickle

        guard.status = StatusWriter(run_dir, rank)
        guard.status.phase("joining the group")
        function, arguments, engine, sources = pickle.loads((run_dir / "call").read_bytes())
        for name, lines in sources.items():  # so that a traceback shows the cell's lines
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
        join, leave = ENGINES[engine]
        if before:
            before(run_dir, rank)
        join()
        gc.freeze()
        gc.enable()
        guard.status.phase("running")
        result = function(*arguments)
        guard.status.phase("collecting results")
        try:
            (run_dir / f"result{rank}").write_bytes(cloudpickle.dumps(result))
        except Exception as error:
            kind = type(result).__name__
            raise UserError(f"what the function returns ({kind}) cannot be sent back: {error}") from None
        leave()


def join_torch() -> None:
    import torch.distributed as dist

    dist.init_process_group()


def leave_torch() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()  # rank 0's store must not end while another rank uses it
        dist.destroy_process_group()


def join_horovod() -> None:
    import horovod.torch as hvd

    hvd.init()


def leave_horovod() -> None:
    import horovod.torch as hvd

    hvd.shutdown()


ENGINES = {
    "torch": (join_torch, leave_torch),
    "horovod": (join_horovod, leave_horovod),
    "bare": (lambda: None, lambda: None),
}


if __name__ == "__main__":
    main()
