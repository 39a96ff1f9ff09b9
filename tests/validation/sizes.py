"""How large the project is: `python -m tests.validation.sizes`. It judges nothing.

The core is what a newcomer must know: how a run is described, launched, trained, measured and recorded.
"""

import ast
import subprocess
from pathlib import Path

from bench.cli import COMMANDS, all_commands
from bench.config.options import FIELDS
from bench.files import PROJECT

CORE = ("config", "modes", "training", "workload", "measure", "record", "launch", "process", "tasks", "worker.py")


def files(folder: str) -> list[Path]:
    """The tracked files below a folder."""
    listed = subprocess.run(["git", "ls-files", "-z", folder], cwd=PROJECT, capture_output=True, text=True, check=True)
    return [PROJECT / name for name in listed.stdout.split("\0") if name]


def lines(paths: list[Path]) -> int:
    """Lines of the Python files among them."""
    return sum(len(path.read_text().splitlines()) for path in paths if path.suffix == ".py")


def tests_in(paths: list[Path]) -> int:
    """Functions named as tests."""
    trees = [ast.parse(path.read_text()) for path in paths if path.suffix == ".py"]
    return sum(isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
               for tree in trees for node in ast.walk(tree))  # fmt: skip


def main() -> None:
    """Print the table."""
    parts = {part: lines(files(f"bench/{part}")) for part in CORE}
    tests = [path for path in files("tests") if "validation" not in path.parts]
    results = files("results")
    rows = {
        "lines of Python in bench/": lines(files("bench")),
        "of these in the core": sum(parts.values()),
        **{f"  {part}": count for part, count in parts.items() if count},
        "lines of Python in tests/, without validation/": lines(tests),
        "test functions": tests_in(tests),
        "commands": len(COMMANDS),
        "with their parts": len(all_commands()),
        "options": sum(not f.metadata["within"] for f in FIELDS.values()),
        "lines of README.md": len((PROJECT / "README.md").read_text().splitlines()),
        "files in results/": len(results),
        "MiB in results/": round(sum(path.stat().st_size for path in results) / 2**20),
    }
    for name, count in rows.items():
        print(f"{name:<50}{count:>8}")


if __name__ == "__main__":
    main()
