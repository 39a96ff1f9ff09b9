"""Memory in the manual: what each kind is, and what was predicted against what was measured, from a committed file.

`python -m tests.validation.predicted_memory --json FILE` writes it, with the machine.
"""

import json
from pathlib import Path

from bench.measure.environment import cores_in_words
from bench.profile.memory_parts import BESIDES, TENSORS, WORKSPACE
from bench.report import markdown

UNNAMED = ("mode", "gpus", "memory", "allow_slow")  # options that a row does not repeat


def kinds() -> str:
    rows = [[kind, what] for kind, what in (TENSORS | BESIDES).items()]
    return markdown.table([("kind", False), ("what it is", False)], rows)


def measured(path: Path) -> str:
    """Each run: predicted, measured, and the one over the other; what is not predicted, workspaces, apart."""
    found = json.loads(path.read_text())
    rows, worst = [], 0.0
    for row in found["rows"]:
        options = row["options"]
        predicted, seen = sum(row["predicted_mib"].values()), sum(row["measured_mib"].values())
        workspace = row["measured_mib"].get(WORKSPACE, 0.0)
        seen -= workspace
        worst = max(worst, abs(predicted / seen - 1))
        words = " ".join(f"{name.upper()}={value}" for name, value in options.items() if name not in UNNAMED)
        passing = [sum(row[side].get(kind, 0.0) for kind in ("gradients", "activations"))
                   for side in ("predicted_mib", "measured_mib")]  # fmt: skip
        rows.append([f"{options['mode']}, {options['gpus']}", words, *(f"{mib:.1f}" for mib in passing),
                     f"{predicted:.1f}", f"{seen:.1f}", f"{100 * (predicted / seen - 1):+.1f} %",
                     f"{workspace:.1f}"])  # fmt: skip
    head = [("mode, devices", False), ("options", False), ("gradients and activations, predicted", True),
            ("measured, MiB", True), ("all, predicted", True), ("measured, MiB", True), ("error", True),
            ("workspaces (not predicted), measured, MiB", True)]  # fmt: skip
    where, versions = found["environment"]["machine"], found["environment"]["versions"]
    return (
        f"{len(rows)} runs, one each (n = 1), error at most {100 * worst:.1f} %. CPU only: {where['cpu_model']}, "
        f"{cores_in_words(where['usable_cores'])}; python {versions['python']}, torch {versions['torch']}. Of "
        f"several processes, the one with the largest error.\n\n{markdown.table(head, rows)}"
    )
