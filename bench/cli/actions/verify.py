"""``bench verify``: do all modes compute the same update on this machine?

Every mode trains 20 steps from the same start on the same global batches in real processes, and the weights are
compared with those of one process. Without batch norm they must agree within BOUND in float32, but not bitwise: a sum
over two half batches rounds differently from one over the whole batch, and training amplifies the difference.

On GPUs cuDNN's algorithm depends on the batch size. So single is compared with itself in as many passes as there are
devices, the same update from the same partial batches; the modes may differ MARGIN times as much. With batch norm the
modes differ by design, and so does Horovod's Adasum, which is not a mean: that is shown, but not checked.
"""

import dataclasses
import itertools
import math
import tempfile
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from bench.analysis.tables import print_table, terminal
from bench.config import data_sets
from bench.config.command_line import from_arguments
from bench.config.hosts import where
from bench.config.modes import MODES, TRAINABLE
from bench.config.options import UNSET, RunConfig
from bench.config.rules import GPT
from bench.config.workloads import work, workload_of
from bench.errors import ExitCode, UserError
from bench.launch.devices import usable_gpus
from bench.launch.engines import mpirun
from bench.launch.launcher import launch, resolve_here
from bench.record.read import load
from bench.record.view import Record
from bench.studies.programs import impossible, in_mode, measured_only, modes_of

BOUND = 1e-5
MARGIN, LOOSEST = 4, 1e-4  # on GPUs: times the control's difference, and never more than this
STEPS = (1, 5, 10, 20)
# A small learning rate keeps rounding below the bound: with lr 0.01 one seed in four exceeded it, because a ReLU's sign
# flipped. An error of a mode (a sum instead of the mean, a missing broadcast) is much larger.
VERIFY_LR = 0.002

SAME_UPDATE = [mode for mode in TRAINABLE if MODES[mode].same_update]
CONTROL = "single, 1 thread"
PASSES = "single, in passes"  # the control on GPUs
ADASUM = "horovod, Adasum"
NORM_FACTS = """\
What batch norm does in each mode (facts, not failures):
- single normalises with the statistics of the whole batch; modes on several devices normalise with those of one
  device's part. So their first step differs from single's, and agrees among them up to rounding.
- batch norm amplifies rounding quickly: the control (single against single with one thread) differs only in the order
  of its sums. A difference as large as the control's is not evidence against a mode.
- running statistics: """


def run(args) -> int:
    """Run every mode that can run here and print the two tables; exit code 1 if a mode exceeds the bound."""
    asked, console = from_arguments(args), terminal()
    devices = asked.num_devices if asked.num_devices > 1 else 2
    alone = asked.num_devices == 1 and asked.device != "cpu" and len(usable_gpus(asked)) == 1
    if alone and not asked.share_gpu:
        console.print("One GPU: two ranks share it, as with SHARE_GPU=1; modes that cannot are not compared")
        asked = dataclasses.replace(asked, share_gpu=True)
    common = {"num_devices": devices, "warmup_steps": 0, "timed_steps": STEPS[-1], "baselines": False}
    common |= measured_only() | {"snapshots": ",".join(map(str, STEPS)), "precision": "fp32", "plain": True}
    common["lr"] = VERIFY_LR if asked.lr == UNSET["lr"] else asked.lr
    asked = dataclasses.replace(asked, **common, mode="ddp", launcher="auto", dist_url=None)
    if asked.model is None and (asked.data is None or data_sets.info_of(asked.data).workload == "images"):
        asked = dataclasses.replace(asked, model="resnet18")
    ddp = resolve_here(asked)
    if ddp.hosts:
        console.print(where(ddp))
    console.print(
        f"{STEPS[-1]} steps of {work(ddp)}, {ddp.optimizer} lr {ddp.lr:g}, global "
        f"batch {ddp.global_batch} on {ddp.num_devices} × {ddp.device}, float32, seed {ddp.seed}"
    )
    modes = SAME_UPDATE if args.modes is None else list(dict.fromkeys(["single", *modes_of(args.modes)]))
    with tempfile.TemporaryDirectory(prefix="bench-verify-") as folder:
        worst, control, missing = compare(console, dataclasses.replace(ddp, out=folder), "none", modes)
        if has_norms := ddp.model != GPT:
            has_norms = compare(console, dataclasses.replace(ddp, out=folder), "batch", modes) is not None
    buffers = "; ".join(f"{mode} {said}" for mode in modes if (said := MODES[mode].norm_buffers))
    console.print(NORM_FACTS + buffers + "." if has_norms else "the model has no batch norm")
    for sentence in missing:
        console.print(f"not compared: {sentence}")
    bound = bound_of(control)
    why = "" if control is None else f" (single in {devices} passes differs by {control:.1e})"
    ok = worst <= bound
    console.print(
        f"verify: {'ok' if ok else 'FAILED'}: largest difference {worst:.1e}, bound {bound:.0e}{why}"
        + (f"; {len(missing)} mode(s) not compared" if missing else "")
    )
    return ExitCode.DONE if ok else ExitCode.FAILED


def bound_of(control: float | None) -> float:
    """Largest allowed difference from single. control: single's difference from itself in passes; None on a CPU.

    >>> [bound_of(control) for control in (None, 1e-7, 5e-6, 1e-3)]
    [1e-05, 1e-05, 2e-05, 0.0001]
    """
    return BOUND if control is None else min(LOOSEST, max(BOUND, MARGIN * control))


def programs(config: RunConfig, norm: str, modes: list[str] = SAME_UPDATE) -> dict[str, RunConfig]:
    """The runs to compare, by name, on the same batches with the same kind of norm; with batch norm CONTROL, without it
    on GPUs PASSES, and ADASUM if it is available."""
    config = dataclasses.replace(config, norm=norm)
    runs = {mode: in_mode(config, mode) for mode in modes if not impossible(config, mode)}
    if norm == "batch":
        runs[CONTROL] = dataclasses.replace(runs["single"], threads=1)
    if norm == "none" and config.device == "cuda":
        single, n = runs["single"], config.num_devices
        part = {"accumulate": single.accumulate * n, "per_device_batch": single.per_device_batch // n}
        runs[PASSES] = dataclasses.replace(single, **part)
    if norm == "none" and "horovod" in runs and not why_no_adasum(config):
        runs[ADASUM] = in_mode(config, "horovod", adasum=True)
    return runs


def why_no_adasum(config: RunConfig) -> str:
    """Why a config is not run with Adasum; "" where it is."""
    if config.hosts or config.device != "cpu" or config.num_devices & (config.num_devices - 1):
        return "it combines the ranks of one machine in pairs"
    return mpirun.unavailable_reason(config)


def compare(
    console: Console, base: RunConfig, norm: str, modes: list[str]
) -> tuple[float, float | None, list[str]] | None:
    """Run the modes on one config; print the table. Returns the largest difference (infinite if not comparable), that
    of PASSES if there is one, and why modes are missing. None for a model without batch norm to compare."""
    folders, records = {}, {}
    missing = [f"{mode} {why}" for mode in modes if (why := impossible(base, mode))]
    for name, config in programs(base, norm, modes).items():
        try:
            path = launch(config)
        except UserError as error:
            missing.append(f"{name}: {error}")
            continue
        folders[name], records[name] = path.parent, load(path)
        if norm == "batch" and "BatchNorm" not in records[name].samples[0].facts["norm"]:
            return None
    if norm == "none" and (len(folders) < 2 or "single" not in folders):
        raise UserError(f"nothing to compare: {missing[0] if missing else 'only single was chosen'}")
    kind = "norm-free network: must agree" if norm == "none" else "with batch norm: facts"
    table = Table(title=f"largest difference of a weight; {kind}", title_justify="left", box=box.SIMPLE_HEAD)
    for column in [
        "pair",
        *(f"step {step}" for step in STEPS),
        "same start",
        f"same {workload_of(base).batched}",
        "replicas equal",
    ]:
        table.add_column(column, justify="right" if column.startswith("step") else "left", no_wrap=True)
    worst, control = 0.0, None
    for a, b in pairs(folders, norm):
        differences = [difference(folders[a], folders[b], step) for step in STEPS]
        answers = facts(records[a], records[b])
        if b == PASSES:
            control = max(differences)
        elif b == ADASUM:
            worst = max(worst, 0.0 if all(answers) else math.inf)
        else:
            worst = max(worst, *differences, 0.0 if all(answers) else math.inf)
        words = ["yes" if answer else "NO" for answer in answers]
        table.add_row(f"{a} – {b}", *(f"{d:.1e}" for d in differences), *words)
    print_table(console, table)
    if norm == "none":
        moved = max(largest_change(folder) for folder in folders.values())
        console.print(f"training moved a weight by up to {moved:.1e} between steps {STEPS[0]} and {STEPS[-1]}")
        if ADASUM in folders:
            console.print(f"{ADASUM}: a different update by design, neither mean nor sum: shown, but not checked")
    else:
        print_buffers(console, folders, records)
    return worst, control, missing


def pairs(names, norm: str) -> list[tuple[str, str]]:
    """The pairs to compare: everything with single, and with batch norm also the multi-device modes with each other."""
    every = itertools.combinations(names, 2)
    return [(a, b) for a, b in every if a == "single" or (norm == "batch" and b != CONTROL)]


def difference(a: Path, b: Path, step: int) -> float:
    """The largest absolute difference of any parameter between two runs' rank 0 after a step."""
    return largest(*(np.load(folder / f"rank0-step{step}.npz") for folder in (a, b)))


def largest_change(folder: Path) -> float:
    """The largest change of a weight by training: agreement of weights that do not change proves nothing."""
    return largest(*(np.load(folder / f"rank0-step{step}.npz") for step in (STEPS[0], STEPS[-1])))


def largest(left, right) -> float:
    """The largest absolute difference of any parameter between two snapshots; buffers are left out. Infinite if a
    weight is not a number."""
    names = [n for n in left.files if not any(part in n for part in ("running_", "moving_", "num_batches"))]
    differences = [float(np.abs(left[n] - right[n]).max()) for n in names]
    return math.inf if any(math.isnan(d) for d in differences) else max(differences)


def facts(a: Record, b: Record) -> list[bool]:
    """Did two runs start from the same weights, read the same images first, and end with equal replicas?"""
    start = a.samples[0].initial_weights_sha256 == b.samples[0].initial_weights_sha256
    union = [sorted(i for part in record.samples for i in part.first_indices) for record in (a, b)]
    ends = [len({part.final_weights_sha256 for part in record.samples}) == 1 for record in (a, b)]
    return [start, union[0] == union[1], all(ends)]


def print_buffers(console: Console, folders: dict, records: dict[str, Record]) -> None:
    step = STEPS[-1]
    console.print(f"running means after step {step}, largest difference:")
    for mode, folder in folders.items():
        ranks = [np.load(folder / f"rank{r}-step{step}.npz") for r in range(records[mode].world_size)]
        reference = np.load(folders["single"] / f"rank0-step{step}.npz") if "single" in folders else ranks[0]
        means = [n for n in ranks[0].files if n.endswith(("running_mean", "moving_mean"))]  # torch's, Keras's
        between = max((float(np.abs(ranks[0][n] - r[n]).max()) for r in ranks for n in means), default=0.0)
        apart = max((float(np.abs(ranks[0][n] - reference[n]).max()) for n in means), default=0.0)
        console.print(f"  {mode}: between ranks {between:.1e}, rank 0 against single {apart:.1e}")
