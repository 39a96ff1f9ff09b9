"""``bench verify``: proof before speed. Do all modes compute the same update on this machine?

Every mode trains 20 steps from the same start on the same global batches in real processes, and the weights are
compared with those of one process. Without batch norm they must agree within BOUND in float32. They do not agree to the
last bit: a sum over two half batches rounds otherwise than one sum over the whole batch, and training carries each
difference on and enlarges it, which the columns show.

With batch norm the modes differ by design; that is shown as a fact, not judged.
"""

import dataclasses
import itertools
import tempfile
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from bench import suites
from bench.config import RunConfig
from bench.errors import UserError
from bench.launch.run import launch, resolve_here
from bench.record import load

BOUND = 1e-5
STEPS = (1, 5, 10, 20)
VERIFY_LR = 0.01

BN_FACTS = """\
What batch norm does in each mode (facts, not failures):
- single normalises with the statistics of the whole batch; dp, ddp and horovod each with those of one device's part.
  So their updates differ from single's, and agree with each other.
- running statistics: dp keeps device 0's; ddp broadcasts rank 0's before each forward pass, so at the end of a step
  ranks differ by that step alone; horovod leaves each rank its own, and they drift apart."""


def run(asked: RunConfig) -> int:
    """Run every mode that can run here and print the two tables; exit code 1 when a mode breaks the bound."""
    console = Console(highlight=False)
    devices = asked.num_devices if asked.num_devices > 1 else 2
    common = {"num_devices": devices, "warmup_steps": 0, "timed_steps": STEPS[-1], "baselines": False}
    common |= {"snapshots": ",".join(map(str, STEPS)), "fault": None, "epochs": 0, "precision": "fp32"}
    default_lr = next(f.default for f in dataclasses.fields(RunConfig) if f.name == "lr")
    common["lr"] = VERIFY_LR if asked.lr == default_lr else asked.lr
    model = asked.model or "resnet18"
    asked = dataclasses.replace(asked, **common, mode="ddp", launcher="auto", model=model, dist_url=None)
    ddp = resolve_here(asked)
    console.print(
        f"{STEPS[-1]} steps of {ddp.model}, {ddp.data} at {ddp.image_size} px, {ddp.optimizer} lr {ddp.lr:g}, global "
        f"batch {ddp.global_batch} on {ddp.num_devices} × {ddp.device}, float32, seed {ddp.seed}"
    )
    with tempfile.TemporaryDirectory(prefix="bench-verify-") as folder:
        worst, missing = compare(console, dataclasses.replace(ddp, out=folder), "none")
        compare(console, dataclasses.replace(ddp, out=folder), "batch")
    console.print(BN_FACTS)
    for sentence in missing:
        console.print(f"not compared: {sentence}", markup=False)
    ok = worst <= BOUND
    console.print(
        f"verify: {'ok' if ok else 'FAILED'}: largest difference {worst:.1e}, bound {BOUND:.0e}"
        + (f"; {len(missing)} mode(s) not compared" if missing else "")
    )
    return 0 if ok else 1


def compare(console: Console, base: RunConfig, norm: str) -> tuple[float, list[str]]:
    """Run the modes on one config; print the table. Returns the largest difference and why modes are missing."""
    snapshots, records, missing = {}, {}, []
    for config in suites.verification(base, norm):
        try:
            path = launch(config)
        except UserError as error:
            missing.append(f"{config.mode}: {error}")
            continue
        snapshots[config.mode], records[config.mode] = path.parent, load(path)
    judge = norm == "none"
    title = "norm-free network: must agree" if judge else "with batch norm: facts"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in [
        "pair",
        *(f"step {step}" for step in STEPS),
        "same start",
        "same images",
        "replicas equal at the end",
    ]:
        table.add_column(column, justify="right" if column.startswith("step") else "left")
    worst = 0.0
    for a, b in itertools.combinations(snapshots, 2):
        if a != "single" and judge:
            continue  # what equals single within the bound needs no other comparison
        differences = [difference(snapshots[a], snapshots[b], step) for step in STEPS]
        worst = max(worst, *differences)
        table.add_row(f"{a} – {b}", *(f"{d:.1e}" for d in differences), *facts(records[a], records[b]))
    console.print(table)
    if not judge:
        print_buffers(console, snapshots, records)
    return worst, missing


def difference(a: Path, b: Path, step: int) -> float:
    """The largest absolute difference of any parameter between two runs' rank 0 after a step."""
    left, right = (np.load(folder / f"rank0-step{step}.npz") for folder in (a, b))
    names = [n for n in left.files if "running_" not in n and "num_batches" not in n]
    return max(float(np.abs(left[n] - right[n]).max()) for n in names)


def facts(a: dict, b: dict) -> list[str]:
    """Did two runs start from the same weights, read the same images, and end with equal replicas?"""
    start = a["samples"][0]["initial_weights_sha256"] == b["samples"][0]["initial_weights_sha256"]
    union = [sorted(i for part in r["samples"] for i in part["first_indices"]) for r in (a, b)]
    ends = [len({part["final_weights_sha256"] for part in r["samples"]}) == 1 for r in (a, b)]
    return ["yes" if fact else "NO" for fact in (start, union[0] == union[1], all(ends))]


def print_buffers(console: Console, snapshots: dict, records: dict) -> None:
    """How far batch norm's running means differ between ranks, and from single's."""
    step, lines = STEPS[-1], []
    for mode, folder in snapshots.items():
        ranks = [np.load(folder / f"rank{r}-step{step}.npz") for r in range(records[mode]["topology"]["world_size"])]
        reference = np.load(snapshots["single"] / f"rank0-step{step}.npz") if "single" in snapshots else ranks[0]
        means = [n for n in ranks[0].files if n.endswith("running_mean")]
        between = max((float(np.abs(ranks[0][n] - r[n]).max()) for r in ranks for n in means), default=0.0)
        apart = max((float(np.abs(ranks[0][n] - reference[n]).max()) for n in means), default=0.0)
        lines.append(f"{mode}: between ranks {between:.1e}, rank 0 against single {apart:.1e}")
    console.print(f"running means after step {step}, largest difference: " + "; ".join(lines))
