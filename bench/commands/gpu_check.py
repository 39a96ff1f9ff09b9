"""``bench gpu-check``: what only a GPU can prove. Leaves records ready for ``results/reference/``.

Every mode runs on every GPU of this machine; each record is then asked whether NVML saw the process, whether CUDA
events agree with the wall clock, and whether device 0 is the fullest under DP.
"""

import dataclasses
import re
from pathlib import Path

from bench.analysis.tables import print_grid, runs_grid, terminal
from bench.config.command_line import from_arguments
from bench.config.modes import MODES, TRAINABLE
from bench.config.options import KNOBS, UNSET, RunConfig
from bench.errors import BenchError, UserError
from bench.launch.devices import usable_gpus
from bench.launch.launcher import launch, resolve_here
from bench.record.describe import machine_line
from bench.record.read import load
from bench.record.view import Record
from bench.studies.programs import in_mode, profiled, shown


def run(args) -> int:
    """Run, print a table and the checks; exit code 1 when a run or a check fails. Raises UserError without a GPU."""
    asked = from_arguments(args)
    gpus = usable_gpus(asked)
    if not gpus:
        raise UserError("gpu-check needs a GPU, and none is visible here: `bench doctor` says why")
    machine = re.sub(r"[^a-z0-9]+", "-", f"{len(gpus)}x-{gpus[0].name}".lower()).strip("-")
    out = f"results/reference/{machine}" if asked.out == UNSET["out"] else asked.out
    console, records, findings = terminal(), [], []
    base = dataclasses.replace(asked, out=out, device="cuda", mode="ddp", launcher="auto", num_devices=1)
    for config in configs(resolve_here(base), len(gpus)):
        name = name_of(config)
        try:
            record = load(launch(config))
        except BenchError as error:
            findings.append((name, "the run ends well", False, str(error)))
            continue
        records.append(record)
        findings += [(name, *finding) for finding in check(record)]
    if records:
        console.print(machine_line(records[0]), highlight=False)
        print_grid(console, runs_grid(records))
    for name, question, ok, answer in findings:
        console.print(f"{'ok    ' if ok else 'FAILED'} {name}: {question}: {answer}", highlight=False, markup=False)
    print(f"records: {Path(out).resolve()}")
    return 0 if all(ok for _, _, ok, _ in findings) else 1


def configs(config: RunConfig, num_gpus: int) -> list[RunConfig]:
    """Every mode on every GPU, in float32, TF32 and bf16; with the timeline of a step; every option of the engines;
    with one GPU, ddp's ranks sharing it as well."""
    config = dataclasses.replace(config, num_devices=num_gpus, baselines=False)
    runs = [in_mode(dataclasses.replace(config, precision=p), m) for p in ("fp32", "tf32", "bf16") for m in MODES]
    runs += profiled(config, TRAINABLE).values()
    runs += [dataclasses.replace(in_mode(config, m), **knobs) for m, info in MODES.items() for knobs in info.on_gpu]
    if num_gpus == 1:
        runs.append(dataclasses.replace(config, num_devices=2, share_gpu=True, mode="ddp", launcher="torchrun"))
    return runs


def name_of(config: RunConfig) -> str:
    """Mode, devices, precision, and the options that are not at their defaults."""
    options = sorted(KNOBS | {"profile", "share_gpu"})
    changed = [f"{n}={shown(getattr(config, n))}" for n in options if getattr(config, n) != UNSET[n]]
    return ", ".join([f"{config.mode} × {config.num_devices}", config.precision, *changed])


def check(record: Record) -> list[tuple[str, bool, str]]:
    """(question, is it so, figures) for each thing a GPU's record must show."""
    part = record.samples[0]
    events = sum(part.step_time_s)
    wall = part.moments["last_timed_step"] - part.moments["first_timed_step"]
    devices = record.peak_memory
    process, whole = devices[0].get("nvml_process"), devices[0].get("nvml_device")
    findings = [
        (
            "CUDA events agree with the wall clock",
            abs(events / wall - 1) < 0.01,
            f"{events:.3f} s and {wall:.3f} s",
        ),
        ("NVML shows the device's memory", whole is not None, f"{whole} GiB"),
        (
            "the process needs no more than the device holds, by NVML (no process figure inside some containers)",
            process is None or process <= whole,
            f"{process} GiB of {whole} GiB",
        ),
    ]
    if record.config.profile:
        lanes = {span["lane"] for rank in record.samples for span in rank.timeline["spans"]}
        notes = "; ".join(note for rank in record.samples for note in rank.timeline["notes"])
        findings.append(("the timeline has a compute lane", "compute" in lanes, f"{', '.join(sorted(lanes))} {notes}"))
    if record.mode.one_process and len(devices) > 1:
        peaks = [d["torch_allocated"] for d in devices]
        peaks[0] -= part.facts.get("data_on_device_bytes", 0) / 2**30  # DATA=synthetic is there alone
        figures = " ".join(f"{p:.2f}" for p in peaks)
        findings.append(
            ("device 0 is the fullest under DP, without its data", peaks[0] == max(peaks), f"{figures} GiB")
        )
    return findings
