"""One process of a script, forked from the runner: its place, its output, its life as ``__main__``, what it leaves."""

import atexit
import ctypes
import hashlib
import json
import os
import random
import runpy
import sys
import threading
from pathlib import Path

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

ROOT = Path(__file__).resolve().parents[2]
NOTHING = Path(__file__).resolve().parent / "nothing"


def live(path: Path, log: Path, work: Path, variables: dict, watched: bool) -> None:
    """Run the script at ``path`` in the folder ``work``; never returns. log: a path that .out, .err, .json extend."""
    os.setsid()  # its loader's workers, too, end with its group
    os.environ.update(variables)
    for number, ending in ((1, ".out"), (2, ".err")):
        file = os.open(f"{log}{ending}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, number)
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.chdir(work)
    sys.argv = [str(path)]
    if not watched:
        for name in [name for name in sys.modules if name.split(".")[0] == "bench"]:
            del sys.modules[name]
        sys.path.insert(0, str(NOTHING))
    seed = int(variables.get("RANK") or variables.get("HOROVOD_RANK") or 0)
    random.seed(seed)  # a copy of a process has other numbers at each time, and the runs with and without are compared
    np.random.seed(seed)
    torch.set_num_threads(1)
    weights, code = Weights(), 0
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        sys.last_value = error  # as an interpreter leaves it
        sys.excepthook(*sys.exc_info())
        code = 1
    facts = {"weights": weights.hash.hexdigest(), "steps": weights.steps, "random": random_states(), "code": code}
    Path(f"{log}.json").write_text(json.dumps(facts))
    sys.stdout.flush()
    threading._shutdown()  # the order in which an interpreter ends
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Weights:
    """A hash of every parameter after every optimizer step of this process."""

    def __init__(self):
        self.hash, self.steps = hashlib.sha256(), 0
        register_optimizer_step_post_hook(self.stepped)

    def stepped(self, optimizer, arguments, options) -> None:
        """Called after each step of any optimizer."""
        self.steps += 1
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                whole = parameter.detach().contiguous()  # read as memory: a Watch counts .numpy() as a wait
                self.hash.update(ctypes.string_at(whole.data_ptr(), whole.nbytes))


def random_states() -> str:
    """A hash of the states of the generators that belong to the process."""
    _, keys, position, *_ = np.random.get_state()
    states = torch.get_rng_state().numpy().tobytes(), random.getstate(), keys.tobytes(), position
    return hashlib.sha256(repr(states).encode()).hexdigest()
