"""`bench new-workload`: a file with a model and data of one's own to begin with, which runs as it is."""

import shlex
from pathlib import Path

from bench.commands.base import needed
from bench.errors import UserError

TEMPLATE = Path(__file__).parents[1] / "workload" / "own" / "template.py"


def run(args) -> int:
    """Write the file, never over another; the command that runs it is the last line."""
    path = Path(needed("FILE", args.file)).expanduser()
    if path.suffix != ".py":
        raise UserError(f"FILE={path}: name a Python file, as mine.py")
    try:
        with path.open("x") as file:
            file.write(TEMPLATE.read_text().replace("FILE", str(path)))
    except FileExistsError:
        raise UserError(f"{path} is there already: name another file") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror})") from None
    print(f"written: {path}")
    place = shlex.quote(str(path))
    print(f"run it: bench run --mode ddp --gpus 2 --model {place}:build --data {place}:datasets")
    return 0
