"""Run by a launcher on two ranks: ``several_runs.py PLAN``. Real runs one after the other in the same processes.

PLAN is JSON: {"mode", "runs": {folder: options of RunConfig}}. Each run goes through the worker's own door, from the
config to the record in its folder; only joining the group, which takes most of a short run's time, is done once.
"""

import json
import sys
from pathlib import Path

from bench import worker
from bench.config import RunConfig, resolve
from bench.modes import group, load_mode
from bench.progress import StatusWriter

plan = json.loads(Path(sys.argv[1]).read_text())
configs = {Path(folder): resolve(RunConfig(mode=plan["mode"], **options), "cpu", 2)
           for folder, options in plan["runs"].items()}  # fmt: skip
Mode = load_mode(plan["mode"])
close, Mode.close = Mode.close, lambda self: None
first = Mode(next(iter(configs.values())))
group.join = lambda config: first.topology  # Horovod's init does nothing the second time
for run_dir, config in configs.items():
    worker.run(config, run_dir, StatusWriter(run_dir, first.topology.rank))
    first.barrier()
close(first)
