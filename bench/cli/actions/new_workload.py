"""`bench install workload`: a template for your own model and data, which runs unchanged."""

import shlex
from pathlib import Path

from bench.cli.base import require_argument
from bench.config.fields import is_unicode
from bench.errors import UserError, printable

TEMPLATE = Path(__file__).parents[2] / "workload" / "own" / "template.py"


def run(args) -> int:
    """Write the file, never replacing one; the command that runs it is the last line."""
    path = Path(require_argument("FILE", args.file)).expanduser()
    if path.suffix != ".py" or not is_unicode(str(path)):
        raise UserError(f"FILE={path}: name a Python file, such as mine.py, in UTF-8")
    try:
        text = TEMPLATE.read_text(encoding="utf-8").replace("FILE", in_docstring(str(path)))
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path} already exists: choose another file") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror})") from None
    print(f"written: {printable(str(path))}")
    place = shlex.quote(str(path))
    place = place if place.isprintable() else printable(place)
    print(f"run it: bench run --mode ddp --gpus 2 --model {place}:build --data {place}:datasets")
    return 0


def in_docstring(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')
