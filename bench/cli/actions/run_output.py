"""The output of one run: before it, after each epoch, and at its end."""

from pathlib import Path

from rich.console import Console

from bench import formulas, mistakes
from bench.analysis import tables
from bench.cli.actions.check_records import print_findings
from bench.cli.base import warn
from bench.config import gpu_defaults
from bench.config.hosts import where
from bench.config.modes import describe_emulation
from bench.config.options import RunConfig
from bench.config.workloads import work, workload_of
from bench.errors import BenchError
from bench.record.describe import (
    cautions_of_single_runs,
    epoch_line,
    flops_sentence,
    machine_line,
    memory_sentences,
    staging_sentence,
)
from bench.record.read import load
from bench.record.view import Record
from bench.storage import stage
from bench.storage.urls import without_credentials


def announce(console: Console, config: RunConfig, launcher: str = "") -> None:
    """Print what will run, and on what. launcher: the external launcher, if any."""
    if config.hosts:
        console.print(where(config))
    if config.device == "cpu" and config.num_devices > 1:
        console.print(f"No GPU is used: {describe_emulation(config.mode, config.num_devices)}; memory is host memory.")
    epochs = f"{config.epochs} epoch{'s' * (config.epochs > 1)}"
    steps = epochs if config.epochs else f"{config.warmup_steps} warm-up + {config.timed_steps} timed steps"
    steps = "validation only" if config.evaluate else steps
    console.print(
        f"{config.mode} on {config.num_devices} × {config.device}: {work(config, without_credentials(config.data))}, "
        f"{config.per_device_batch} {workload_of(config).batched} per device per step, {steps}, "
        f"{config.precision}, {launcher or config.launcher}, seed {config.seed}"
    )
    if config.elastic:
        often = f"every {config.checkpoint_steps} steps and " if config.checkpoint_steps else ""
        more = "" if config.checkpoint_steps else " (CHECKPOINT_STEPS=n writes more of them)"
        console.print(
            f"MIN_DEVICES={config.elastic}: continues when ranks are lost, on {config.elastic} to {config.num_devices} "
            f"devices, up to {config.restarts} times, from a checkpoint after {often}every epoch{more}"
        )  # fmt: skip
    if chosen := gpu_defaults.sentence(config):
        also = "" if config.baselines or config.epochs or config.evaluate else ", BASELINES=1 runs both"
        console.print(chosen + also)
    if config.watch and not config.warmup_steps and not config.evaluate:
        console.print("WATCH=1 checks gradients during untimed steps, but WARMUP=0 leaves none: use WARMUP=1 or more")
    if config.mistake != "none":
        console.print(mistakes.MISTAKES[config.mistake].warning, style="bold red")


def finish(console: Console, config: RunConfig, path: Path, others: list[Record]) -> int:
    """After a run: its table, its folder copied, and the record's path as the last line."""
    try:
        print_run(console, load(path), others)
        if config.watch:
            print_findings(load(path))
    except Exception:
        copy_partial_results(config, path.parent)
        raise
    try:
        if config.copy_to:
            print(f"copied to: {stage.copy_back(path.parent, config.copy_to, config.timeout)}")
    finally:
        print(f"record: {path}", flush=True)
    return 0


def copy_partial_results(config: RunConfig, run_dir: Path | None) -> None:
    """After a failure: copy the run's files to COPY_TO. If that fails too, print why and raise nothing."""
    if config.copy_to and run_dir:
        try:
            print(f"copied to: {stage.copy_back(run_dir, config.copy_to, config.timeout)}", flush=True)
        except (BenchError, OSError) as error:
            warn(f"bench: not copied: {error}")


def print_run(console: Console, record: Record, others: list[Record]) -> None:
    console.print(machine_line(record), style="bold")
    if not record.config.evaluate:  # which has no steps
        tables.print_grid(console, tables.runs_grid([record, *others], record if others else None))
    if record.samples and record.config.workers:
        shares = [formulas.data_wait_share(part.data_wait_s, part.step_time_s) for part in record.samples]
        console.print(f"waiting for the data loader: {100 * max(shares):.1f} % of the step time (slowest rank)")
    if len((memory := tables.measured_memory([record])).head) > 1:
        console.print(f"{memory.caption}:")
        tables.print_grid(console, memory)
    said = [flops_sentence(record), staging_sentence(record), *record.notes, *memory_sentences(record)]
    for note in filter(None, said):
        console.print(f"note: {note}")
    for other in (other for other in others if other.config.plain):
        console.print(
            f"note: {other.program} is the same command with TORCH_DEFAULTS=1: {other.config.precision}, "
            f"{other.config.per_device_batch} {other.workload.batched} per device, and nothing chosen "
            "for the GPU. One run, no interval."
        )
    if any(not other.config.plain for other in others):
        console.print(
            "note: single is one process with all threads and the same global batch; independent has no communication, "
            "and its processes do not wait for each other. The speedup is the ratio of median steps (independent: of "
            f"the summed median rates of its processes); {record.workload.units}/s counts all steps. One run each."
        )
    for sentence in cautions_of_single_runs(record, others):
        tables.print_named(console, "warning", sentence)
    print_accuracy(console, record)


def print_accuracy(console: Console, record: Record) -> None:
    """The result of a run that only validated (epochs were shown as they ended), and the time to the target."""
    for row in record.epochs if record.config.evaluate else ():
        console.print(epoch_line(row, record.workload))
    if "target" in record.accuracy:
        seconds = record.accuracy["time_to_accuracy_s"]
        reached = "not reached" if seconds is None else f"reached after {seconds:.1f} s of training and validation"
        console.print(f"{record.workload.metrics[0].label} {record.accuracy['target']:g}: {reached}")
