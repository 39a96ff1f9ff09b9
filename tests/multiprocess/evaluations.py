"""In the worker's place (other_worker.py): one mode evaluates one checkpoint after the other, as single runs would.

SAVED in the environment: name -> path of a run, in JSON. Out: RUN_DIR/<name>/record.json, and a copy of the last.
"""

import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path

from bench import modes, worker
from bench.config import from_dict
from bench.guard import Guard
from bench.progress import StatusWriter


def main() -> None:
    """One rank's life: joined once, it lives the worker's life once a checkpoint."""
    run_dir, rank = Path(sys.argv[1]), int(os.environ.get("RANK", os.environ.get("HOROVOD_RANK", "0")))
    with Guard(run_dir, rank) as guard:
        guard.status = StatusWriter(run_dir, rank)
        config = from_dict(json.loads((run_dir / "config.json").read_text()))
        mode = modes.load_mode(config.mode)(config)
        leave, mode.close = mode.close, lambda: None
        modes.load_mode = lambda name: lambda config: mode
        for name, path in json.loads(os.environ["SAVED"]).items():
            (run_dir / name).mkdir(exist_ok=True)
            worker.run(dataclasses.replace(config, resume=path), run_dir / name, guard.status)
        if rank == 0:
            shutil.copy(run_dir / name / "record.json", run_dir)
        leave()


if __name__ == "__main__":
    main()
