"""Does the suite notice a bug? `python -m tests.validation.mutation` breaks the product on purpose and runs its tests.

A mutant is one change in one place. Areas and kinds of change take turns; the place follows from the seed and from the
text of each place, so two revisions of the suite meet the same mutants: `--at HEAD~20`, in a worktree of that revision.
The worked examples of the broken file and the tests of its package run first, then the real runs of its area, then the
other unit tests, until one fails or until the limit, on an idle machine. Read those that survive: some change nothing,
or only what happens on a GPU.
"""

import argparse
import ast
import copy
import hashlib
import itertools
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from pathlib import Path

from bench.files import PROJECT

# Area -> the files to break, the tests of their package, the real runs that use them.
AREAS = {
    "modes": ("modes/*.py", "unit/modes", "multiprocess/test_modes.py"),
    "loop": ("training/loop.py training/epochs.py", "unit/training", "multiprocess/test_mod* multiprocess/test_tr*"),
    "sampler": ("workload/sharding.py workload/loader.py", "unit/workload", "multiprocess/test_data_kinds.py"),
    "clock": ("measure/clock.py measure/steady.py", "unit/measure", "unit/test_*.py multiprocess/test_modes.py"),
    "memory": ("measure/memory.py predict/memory/*.py", "unit/measure unit/predict", "multiprocess/test_memory.py"),
    "certificate": ("analysis/certificate.py", "unit/analysis", "unit/studies multiprocess/test_compare.py"),
    "statistics": ("analysis/stats.py formulas.py", "unit/test_formulas.py unit/analysis", "unit/studies"),
    "record": ("record/summary.py record/read.py record/write.py", "unit/record", "unit/report"),
    "launcher": ("launch/supervise.py launch/launcher.py", "unit/launch", "multiprocess/test_[fhr]*s.py"),
    "grader": ("course/exercises/grade.py", "exercises/test_grade*.py", "exercises"),
}
OTHER = {ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot, ast.In: ast.NotIn, ast.And: ast.Or}
OTHER |= {new: old for old, new in OTHER.items()}
KINDS = ("flipped comparison", "one more", "dropped call", "swapped operands", "and for or")
Mutant = namedtuple("Mutant", "key kind file line span old new")  # key: the seeded order; span: bytes for ``new``


def changed(node: ast.AST) -> tuple[str, ast.AST] | None:
    new = copy.deepcopy(node)
    match node:
        case ast.Compare(ops=[op]):
            new.ops = [OTHER[type(op)]()]
            return "flipped comparison", new
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return "one more", ast.Constant(number + 1)
        case ast.Expr(value=ast.Call()):
            return "dropped call", ast.Pass()
        case ast.BinOp(op=ast.Sub() | ast.Div() | ast.FloorDiv() | ast.Pow()):
            new.left, new.right = new.right, new.left
            return "swapped operands", new
        case ast.BoolOp(op=op):
            new.op = OTHER[type(op)]()
            return "and for or", new


def nodes(node: ast.AST, function: str = ""):
    function += f".{node.name}" if isinstance(node, ast.FunctionDef | ast.ClassDef) else ""
    yield node, function
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr | ast.Raise):
                    yield from nodes(child, function)


def mutants_of(path: Path, file: str, seed: int) -> list[Mutant]:
    source, found = path.read_bytes(), []
    starts = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
    for node, function in nodes(ast.parse(source)):
        if change := changed(node):
            kind, old, new = change[0], ast.unparse(node), ast.unparse(change[1])
            span = (starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset)
            before = sum((each.kind, each.old) == (kind, old) for each in found)
            key = hashlib.sha256(f"{seed} {file} {function} {kind} {old} {before}".encode()).hexdigest()
            found.append(Mutant(key, kind, file, node.lineno, span, old, new if new == "pass" else f"({new})"))
    return found


def choose(root: Path, count: int, seed: int):
    used = set()
    for number in range(count):
        area, kind = list(AREAS)[number % len(AREAS)], KINDS[(number + number // len(AREAS)) % len(KINDS)]
        files = {path for pattern in AREAS[area][0].split() for path in (root / "bench").glob(pattern)}
        found = [m for path in files for m in mutants_of(path, str(path.relative_to(root)), seed) if m.key not in used]
        mutant = min((m.kind != kind, m.file in used, m) for m in found)[2]
        used |= {mutant.file, mutant.key}
        yield area, mutant


def first_failure(root: Path, tests: list[str], limit_s: float) -> str:
    """The first test that fails; "" when none does. Raises TimeoutError."""
    words = f"timeout -s INT -k 30 {max(1, limit_s):.0f} {sys.executable} -m pytest -qxrfE -p no:cacheprovider".split()
    done = subprocess.run([*words, *tests], cwd=root, capture_output=True, text=True)
    if done.returncode in (124, 137):
        raise TimeoutError
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return "" if done.returncode in (0, 5) else [*failed, f"exit code {done.returncode}"][0]


def judge(root: Path, area: str, mutant: Mutant, limit_s: float) -> str:
    source, deadline, seen, broken = (path := root / mutant.file).read_bytes(), time.monotonic() + limit_s, set(), []
    mutated = source[: mutant.span[0]] + mutant.new.encode() + source[mutant.span[1] :]
    module = mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    examples = [f"tests/unit/test_doctests.py::test_worked_examples[{module}]"] * (b">>>" in source)
    try:
        for group in (*AREAS[area][1:], "unit"):
            found = [each for word in group.split() for each in sorted((root / "tests").glob(word))]
            files = [f for each in found for f in (sorted(each.rglob("test_*.py")) if each.is_dir() else [each])]
            tests = examples * (not seen) + [str(file.relative_to(root)) for file in files if file not in seen]
            seen.update(files)
            path.write_bytes(mutated)
            while tests and (failed := first_failure(root, [*tests, *broken], deadline - time.monotonic())):
                path.write_bytes(source)
                if "::" not in failed or not first_failure(root, [failed], limit_s):
                    return f"noticed by {failed}"
                broken.append(f"--deselect={failed}")  # it fails without the mutant as well
                path.write_bytes(mutated)
    except TimeoutError:
        return f"NOT NOTICED within {limit_s:.0f} s"
    finally:
        path.write_bytes(source)
    return "NOT NOTICED"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--at", default="HEAD", help="revision of product and tests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=15)
    parser.add_argument("--limit", type=float, default=240, help="seconds per mutant; 0: list the mutants")
    asked = parser.parse_args()
    git, verdicts = ["git", "-C", str(PROJECT), "worktree"], []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # removes the worktree
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        subprocess.run([*git, "add", "--quiet", "--detach", root := Path(folder) / "project", asked.at], check=True)
        try:
            for number, (area, mutant) in enumerate(choose(root, asked.count, asked.seed), 1):
                began, change = time.monotonic(), f"{mutant.kind}: {mutant.old}  ->  {mutant.new}"
                print(f"{number:2} {area:<12}{mutant.file}:{mutant.line}  {change}", flush=True)
                if asked.limit:
                    verdicts.append(judge(root, area, mutant, asked.limit))
                    print(f"   {verdicts[-1]} ({time.monotonic() - began:.0f} s)", flush=True)
        finally:
            subprocess.run([*git, "remove", "--force", root], check=True)
    print(f"{sum(each.startswith('noticed') for each in verdicts)} of {len(verdicts)} noticed")


if __name__ == "__main__":
    main()
