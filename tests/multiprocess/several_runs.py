"""Real runs one after the other in the same processes: starting those takes most of a short run's time.

Both sides are here. ``together`` launches, as `bench run` does but for what its ranks do; as a program this is a rank.
Each run goes through the worker's own door, from its config to the record in its folder; only joining the group is done
once. What depends on the launch (the launcher, the threads' environment, a rank's log, a failure) needs a launch of its
own: `tests.runs.run`.
"""

import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path

from bench import worker
from bench.cli import build_parser
from bench.config.modes import MODES
from bench.config.options import RunConfig, from_arguments, from_dict, to_dict
from bench.launch.launcher import resolve_here
from bench.modes import load_mode
from bench.process.guard import Guard
from bench.process.heartbeat import StatusWriter
from tests.multiprocess import other_worker
from tests.runs import SMALL, Result, flags


def together(out: Path, runs: dict[str, dict | RunConfig]) -> dict[str, Result]:
    """What came of each run, by its name; every one ended well, and left what it leaves in ``folder_of(OUT, name)``.

    runs: name -> options as ``tests.runs.run`` takes them, or a config. All in one process (single, dp), or all of one
    mode on one number of devices. A run finds what those before it have left.
    """
    configs = {name: config_of(options) for name, options in runs.items()}
    assert not any(c.launcher == "spawn" for c in configs.values())  # it names the worker itself
    assert len({c.launcher if c.launcher == "in-process" else (c.mode, c.num_devices) for c in configs.values()}) == 1
    plan = {str(folder_of(out, name)): to_dict(config) for name, config in configs.items()}
    for folder in plan:
        Path(folder).mkdir(parents=True)
    (out / "plan.json").write_text(json.dumps(plan))
    first = next(iter(configs.values()))
    other_worker.launch(dataclasses.replace(first, out=str(out / "launch")), __name__)
    return {name: Result(0, "", "", os.getpid(), folder_of(out, name).parent) for name in runs}


def folder_of(out: Path, name: str) -> Path:
    """The folder of one of the runs."""
    return out / name / "run"


def config_of(options: dict | RunConfig) -> RunConfig:
    """The config of ``bench run`` with SMALL's options and these."""
    if isinstance(options, dict):
        options = from_arguments(build_parser().parse_args(["run", *flags(**SMALL | options)]))
    return resolve_here(options)


def main() -> None:
    """One rank's life: joined once, it lives the worker's life once a run."""
    launch_dir, rank = Path(sys.argv[1]), int(os.environ.get("RANK", os.environ.get("HOROVOD_RANK", "0")))
    with Guard(launch_dir, rank) as guard:
        guard.status = StatusWriter(launch_dir, rank)
        plan = json.loads((launch_dir.parents[1] / "plan.json").read_text())
        configs = {Path(folder): from_dict(options) for folder, options in plan.items()}
        first = join_once(next(iter(configs.values())))
        for run_dir, config in configs.items():
            worker.run(config, run_dir, guard.status)
            first.barrier()
        if rank == 0:
            shutil.copy(run_dir / "record.json", launch_dir)
        first.leave()


def join_once(config: RunConfig):
    """The first run's mode, whose group all others find joined; ``leave`` is what its ``close`` was."""
    from bench.modes import collectives as group  # it imports torch, which the launching side may not need

    Mode = load_mode(config.mode)
    mode = Mode(config)
    mode.leave = mode.close
    if not MODES[config.mode].one_process:
        Mode.close = lambda self: None
        group.join = lambda config: mode.topology  # Horovod's init does nothing the second time
    return mode


if __name__ == "__main__":
    main()
