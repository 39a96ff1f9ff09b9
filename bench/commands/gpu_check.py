"""``bench gpu-check``: what only a GPU can prove. Leaves records ready for ``results/reference/``.

Every mode runs on every GPU of this machine; each record is then asked whether NVML saw the process, whether CUDA
events agree with the wall clock, and whether device 0 is the fullest under DP.
"""

import dataclasses
import re
from pathlib import Path

from rich.console import Console

from bench.analysis.tables import machine_line, run_table
from bench.config.options import KNOBS, UNSET, RunConfig
from bench.errors import BenchError, UserError
from bench.launch.launcher import launch, resolve_here
from bench.measure.nvml import visible_gpus
from bench.record.write import load
from bench.studies import programs as suites


def run(asked: RunConfig) -> int:
    """Run, print a table and the checks; exit code 1 when a run or a check fails. Raises UserError without a GPU."""
    gpus = visible_gpus()
    if not gpus:
        raise UserError("gpu-check needs a GPU, and none is visible here: `bench doctor` says why")
    machine = re.sub(r"[^a-z0-9]+", "-", f"{len(gpus)}x-{gpus[0].name}".lower()).strip("-")
    out = f"results/reference/{machine}" if asked.out == UNSET["out"] else asked.out
    console, records, findings = Console(width=140), [], []
    base = dataclasses.replace(asked, out=out, device="cuda", mode="ddp", launcher="auto", num_devices=1)
    for config in suites.gpu_check(resolve_here(base), len(gpus)):
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
        console.print(run_table(records), highlight=False)
    for name, question, ok, answer in findings:
        console.print(f"{'ok    ' if ok else 'FAILED'} {name}: {question}: {answer}", highlight=False, markup=False)
    print(f"records: {Path(out).resolve()}")
    return 0 if all(ok for _, _, ok, _ in findings) else 1


def name_of(config: RunConfig) -> str:
    """Mode, devices, precision, and the options that are not at their defaults."""
    options = sorted(KNOBS | {"profile", "share_gpu"})
    changed = [f"{n}={suites.shown(getattr(config, n))}" for n in options if getattr(config, n) != UNSET[n]]
    return ", ".join([f"{config.mode} × {config.num_devices}", config.precision, *changed])


def check(record: dict) -> list[tuple[str, bool, str]]:
    """(question, is it so, figures) for each thing a GPU's record must show."""
    part = record["samples"][0]
    events = sum(part["step_time_s"])
    wall = part["moments"]["last_timed_step"] - part["moments"]["first_timed_step"]
    devices = record["summary"]["peak_memory_gib"]
    process, whole = devices[0].get("nvml_process"), devices[0].get("nvml_device")
    findings = [
        (
            "CUDA events agree with the wall clock",
            abs(events / wall - 1) < 0.05,
            f"{events:.3f} s and {wall:.3f} s",
        ),
        ("NVML shows the device's memory", whole is not None, f"{whole} GiB"),
        (
            "the process needs no more than the device holds, by NVML (no process figure inside some containers)",
            process is None or process <= whole,
            f"{process} GiB of {whole} GiB",
        ),
    ]
    if record["config"]["profile"]:
        lanes = {span["lane"] for rank in record["samples"] for span in rank["timeline"]["spans"]}
        notes = "; ".join(note for rank in record["samples"] for note in rank["timeline"]["notes"])
        findings.append(("the timeline has a compute lane", "compute" in lanes, f"{', '.join(sorted(lanes))} {notes}"))
    if record["config"]["mode"] == "dp" and len(devices) > 1:
        peaks = [d["torch_allocated"] for d in devices]
        figures = " ".join(f"{p:.2f}" for p in peaks)
        findings.append(("device 0 is the fullest under DP", peaks[0] == max(peaks), f"{figures} GiB"))
    return findings
