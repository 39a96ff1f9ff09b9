"""``python stand_in.py RUN_DIR``: started by horovodrun in place of a rank that is already forked.

Passes its variables to the rank, and ends as the rank does. Imports nothing of this project, so that it starts fast.
"""

import json
import os
import sys
import time


def main(run_dir: str) -> int:
    """Returns 0 when the rank ended well, else 1, also when horovodrun is gone."""
    rank, parent = os.environ["HOROVOD_RANK"], os.getppid()
    variables = {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_")}
    path = os.path.join(run_dir, f"variables{rank}")
    with open(f"{path}.part", "w") as file:
        json.dump(variables, file)
    os.replace(f"{path}.part", path)
    while os.getppid() == parent:
        try:
            with open(os.path.join(run_dir, f"ended{rank}")) as file:
                if code := file.read():
                    return int(code != "0")
        except FileNotFoundError:
            pass
        time.sleep(0.02)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
