"""Tables for a terminal."""

from rich import box
from rich.console import Console
from rich.table import Table

MEMORY_ORDER = ("nvml_process", "nvml_device", "torch_reserved", "torch_allocated", "pss", "uss", "rss")


def terminal() -> Console:
    """Where tables go: as wide as the terminal, and wide enough for a table where the output is a file or a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)


def run_table(records: list[dict], base: dict | None = None) -> Table:
    """One row a record; with ``base``, a column with the ratio of its throughput to that one's."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = [
        "mode",
        "devices",
        "processes\n× threads",
        "global\nbatch",
        "images/s",
        "step ms\nmedian [p5–p95]",
        "n",
    ]
    for column in [*columns, "peak memory\nGiB a device", *(["× this\nrun"] if base else [])]:
        table.add_column(column, justify="left" if column == "mode" else "right", no_wrap="memory" not in column)
    for record in records:
        table.add_row(*row(record), *([ratio(record, base)] if base else []))
    return table


def row(record: dict) -> list[str]:
    """The cells of one record; a failed one says so."""
    config, topology, summary = record["config"], record["topology"], record["summary"]
    name = config["mode"] + (" tuned" if config.get("tuned") else "")
    if record["status"] != "ok":
        return [name, str(config["num_devices"]), "", "", f"failed: {record['failure']['kind']}", "", "", ""]
    step = summary["step_time_s"]
    return [
        name,
        str(topology["num_devices"]),
        f"{topology['world_size']} × {record['samples'][0]['threads']}",
        str(topology["global_batch"]),
        f"{summary['throughput_images_per_s']:.1f}",
        f"{step['median'] * 1e3:.1f} [{step['p5'] * 1e3:.1f}–{step['p95'] * 1e3:.1f}]",
        str(step["n"]),
        memory_cell(summary["peak_memory_gib"]),
    ]


def memory_cell(devices: list[dict]) -> str:
    """The peak of each device by the best source it has, device by device: never summed, never averaged."""
    source = next((s for s in MEMORY_ORDER if all(d.get(s) is not None for d in devices)), None)
    if source is None:
        return "not known"
    return f"{source} " + " ".join(f"{d[source]:.2f}" for d in devices)


def ratio(record: dict, base: dict) -> str:
    """Throughput as a multiple of the base's."""
    if record["status"] != "ok" or base["status"] != "ok":
        return ""
    value = record["summary"]["throughput_images_per_s"] / base["summary"]["throughput_images_per_s"]
    return f"{value:.2f}"


def machine_line(record: dict) -> str:
    """Machine, devices and versions of a record in one line, for the head of a table or a picture."""
    environment = record["environment"]
    machine, versions = environment["machine"], environment["versions"]
    devices = environment.get("devices") or []
    on = f"{len(devices)}× {devices[0]['name']}" if record["config"]["device"] == "cuda" and devices else "CPU only"
    parts = [f"{on}: {machine['cpu_model']}, {machine['usable_cores']} cores"]
    parts += [f"{name} {versions[name].split('+')[0]}" for name in ("python", "torch", "horovod") if versions.get(name)]
    return "; ".join(parts)


def print_run(console: Console, record: dict, baselines: list[dict]) -> None:
    """What a person sees after a run: where it ran, the table, what to know of it, accuracy."""
    console.print(f"[bold]{machine_line(record)}[/]")
    console.print(run_table([record, *baselines], record if baselines else None))
    for note in record["topology"]["notes"]:
        console.print(f"note: {note}", highlight=False, markup=False)
    if baselines:
        console.print(
            "note: single is one process with all the threads on the same global batch; independent is the bound "
            "without communication. One run each, no interval."
        )
    for epoch in record.get("accuracy", {}).get("epochs", []):
        top = f"top-1 {epoch['top1']:.4f}, top-5 {epoch['top5']:.4f}, " if "top1" in epoch else ""
        console.print(f"epoch {epoch['epoch']}: {top}{epoch['elapsed_s']:.1f} s")
