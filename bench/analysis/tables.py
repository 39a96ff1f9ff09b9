"""Tables for a terminal."""

import statistics
from collections import Counter

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench import formulas
from bench.analysis import words
from bench.config.modes import MODES
from bench.record.write import throughput_of

ACCURACY = {"train_loss": "training loss", "loss": "loss", "top1": "top-1", "top5": "top-5"}
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
        justify = "left" if column == "mode" else "right"
        table.add_column(escape(column), justify=justify, no_wrap="memory" not in column)
    for record in records:
        table.add_row(*map(escape, row(record)), *([ratio(record, base)] if base else []))
    return table


def row(record: dict) -> list[str]:
    """The cells of one record; a failed one says so."""
    config, topology, summary = record["config"], record["topology"], record["summary"]
    name = config["mode"] + (" tuned" if config.get("tuned") else "")
    name += f" MISTAKE={config['mistake']}" if config["mistake"] != "none" else ""
    if record["status"] == "failed":
        return [name, str(config["num_devices"]), "", "", f"failed: {record['failure']['kind']}", "", "", ""]
    if record["status"] == "evaluated":
        return [name, str(config["num_devices"]), "", "", f"evaluated: {record['accuracy']['top1']:.4f}", "", "", ""]
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
    """Throughput as a multiple of the base's; with a question mark where the median steps say otherwise."""
    if record["status"] != "ok" or base["status"] != "ok":
        return ""
    by_all, by_median = ratios(record, base)
    return f"{by_all:.2f}" + (" ?" if (by_all - 1) * (by_median - 1) < 0 else "")


def ratios(record: dict, base: dict) -> tuple[float, float]:
    """A run's throughput over another's: over all timed steps, and were every step the median one."""
    by_all, by_median = ([images_per_s(r, median) for r in (record, base)] for median in (False, True))
    return by_all[0] / by_all[1], by_median[0] / by_median[1]


def images_per_s(record: dict, median: bool) -> float:
    """Images per second over all timed steps, or were every step the median one."""
    if not median:
        return record["summary"]["throughput_images_per_s"]
    mode = MODES[record["config"]["mode"]]
    times = formulas.median_steps([part["step_time_s"] for part in record["samples"]], mode.baseline)
    return throughput_of(mode)(times, record["topology"]["global_batch"])


def disturbances(record: dict, others: list[dict]) -> list[str]:
    """What must be known before the figures of single runs are compared: whose mean was moved by a few long steps, and
    whose order the medians turn round."""
    found = []
    for each in [record, *others]:
        if each["status"] != "ok" or (mean_over_median := images_per_s(each, True) / images_per_s(each, False)) < 1.1:
            continue
        longest = max(max(part["step_time_s"]) for part in each["samples"])
        found.append(
            f"{each['config']['mode']} was disturbed: its mean step is {mean_over_median:.2f} × its median step "
            f"(the longest took {longest:.2f} s), and images/s is of the mean: run it again before you compare"
        )
    for other in others:
        if record["status"] == other["status"] == "ok":
            by_all, by_median = ratios(other, record)
            if (by_all - 1) * (by_median - 1) < 0:
                names = other["config"]["mode"], record["config"]["mode"]
                found.append(
                    f"which of {names[0]} and {names[1]} is faster cannot be said from these runs: {names[0]} is at "
                    f"{by_all:.2f} times {names[1]} over all steps, and at {by_median:.2f} by the median steps"
                )
    return found


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
    if record["samples"] and record["config"]["workers"]:
        shares = [formulas.data_wait_share(part["data_wait_s"], part["step_time_s"]) for part in record["samples"]]
        console.print(f"waiting for the loader: {100 * max(shares):.1f} % of the step time (the rank that waits most)")
    for note in record["topology"]["notes"]:
        console.print(f"note: {note}", highlight=False, markup=False)
    if baselines:
        console.print(
            "note: single is one process with all the threads on the same global batch; independent is the bound "
            "without communication. One run each, no interval."
        )
    for sentence in disturbances(record, baselines):
        console.print(f"[bold]warning[/]: {escape(sentence)}", highlight=False)
    print_accuracy(console, record)


def print_accuracy(console: Console, record: dict) -> None:
    """One line an epoch, and the time to the target where one was given."""
    accuracy = record.get("accuracy", {})
    for row in accuracy.get("epochs", []):
        values = [(name, row[key]) for key, name in ACCURACY.items() if key in row]
        parts = [f"{name} {'not finite' if value is None else format(value, '.4f')}" for name, value in values]
        skipped = [f"{row['skipped_steps']} steps skipped"] if row.get("skipped_steps") else []
        took = [f"{row['elapsed_s']:.1f} s"] if row["epoch"] else [f"{row['images']} images"]
        head = f"epoch {row['epoch']}" if row["epoch"] else "validation"
        console.print(f"{head}: {', '.join(parts + skipped + took)}")
    if "target" in accuracy:
        seconds = accuracy["time_to_accuracy_s"]
        reached = "not reached" if seconds is None else f"reached after {seconds:.1f} s of training and validation"
        console.print(f"top-1 {accuracy['target']:g}: {reached}")


def print_records(console: Console, records: list[dict], most: int = 40) -> None:
    """A row a single run; of a suite one line, for its rounds belong together."""
    single = [record for record in records if not record["config"].get("suite")]
    if single:
        console.print(run_table(single[-most:]))
    if len(single) > most:
        console.print(f"{len(single) - most} older runs are not shown: `bench table` has all")
    counts = Counter(record["config"]["suite"] for record in records if record["config"].get("suite"))
    for suite, count in counts.items():
        console.print(f"suite {suite}: {count} records")


def print_certificate(console: Console, certificate) -> None:
    """The parity certificate: one line a fact that is not equal, and how many are."""
    equal = [fact.name for fact in certificate.facts if fact.status == "equal"]
    console.print(f"[bold]parity certificate[/]: {certificate.sentence()}", highlight=False)
    console.print(f"  equal: {', '.join(equal)}", highlight=False)
    for fact in certificate.facts:
        if fact.status != "equal":
            said = f"  {fact.status}: {fact.name} ({words.grouped(fact.values)}): {fact.why}"
            console.print(said, highlight=False, markup=False)


def print_result(console: Console, result) -> None:
    """What a person sees after a suite: where it ran, what was equal, one row a role, the answer in words."""
    suite = result.suite
    console.print(f"[bold]{suite.machine}[/]")
    print_certificate(console, result.certificate)
    console.print(comparison_table(result))
    for role, rounds in result.outliers.items():
        console.print(f"outlier (kept): {role}, round {', '.join(str(n + 1) for n in rounds)}")
    print_answer(console, result)


def print_accuracy_result(console: Console, result) -> None:
    """What a person sees after `bench accuracy`: where it ran, what was equal, one row a mode, the answer in words."""
    from bench.studies.accuracy import result as accuracy

    console.print(f"[bold]{result.suite.machine}[/]")
    print_certificate(console, result.certificate)
    print_grid(console, accuracy.heads(result), [accuracy.cells(result, row) for row in result.rows])
    print_answer(console, result)


def print_lab_result(console: Console, result) -> None:
    """What a person sees after `bench lab`: what was done wrong, one row a figure, the signature, the remedy."""
    from bench.studies.lab import result as labs

    console.print(f"[bold]{result.suite.machine}[/]")
    console.print(f"[bold]{escape(result.name)}: {escape(result.mistake.title)}[/]")
    print_certificate(console, result.certificate)
    print_grid(console, labs.HEADS, [labs.cells(result, row) for row in result.rows])
    print_answer(console, result)
    for name, text in labs.about(result.name):
        console.print(f"{name}: {text}", highlight=False, markup=False)


def print_unsynced_result(console: Console, result) -> None:
    """What a person sees after `bench unsynced-init`: the same, of every model that the runs left behind."""
    from bench.studies.unsynced import result as unsynced

    console.print(f"[bold]{result.suite.machine}[/]")
    print_certificate(console, result.certificate)
    print_grid(console, unsynced.HEADS, [unsynced.cells(result, model) for model in result.models])
    print_grid(console, unsynced.APART_HEADS, [unsynced.apart_cells(apart) for apart in result.apart])
    print_answer(console, result)


# Kind of suite -> what prints its result; `print_result` for the others.
PRINTERS = {"accuracy": print_accuracy_result, "lab": print_lab_result, "unsynced": print_unsynced_result}


def print_grid(console: Console, heads: list[tuple[str, bool]], rows: list[list[str]]) -> None:
    """A table. heads: (name, whether its cells are numbers)."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, number in heads:
        table.add_column(escape(name), justify="right" if number else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def print_answer(console: Console, result) -> None:
    """The runs that are in no figure, then the answer in words."""
    for record in result.suite.left_out:
        console.print(f"left out: {record['run_id']}, repeated or of a round that is not whole")
    for line in result.answer():
        console.print(line, highlight=False, markup=False)


def comparison_table(result) -> Table:
    """One row a role: throughput over rounds, and the ratio to the base with its interval and verdict."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    flag = "" if result.certificate.fair else "\nNOT A FAIR COMPARISON"
    for column in ("role", "images/s\n[lowest–highest]", f"× {result.base}\n[95 % interval]{flag}", "Hodges–Lehmann",
                   "verdict", "n"):  # fmt: skip
        table.add_column(escape(column), justify="left" if column in ("role", "verdict") else "right")
    for role in [result.base, *(r for r in result.suite.roles if r != result.base)]:
        values = result.suite.throughputs(role)
        cells = [role, f"{statistics.geometric_mean(values):.1f} [{min(values):.1f}–{max(values):.1f}]"]
        if role == result.base:
            cells += ["1", "", "base"]
        else:
            pair = result.pair(result.base, role)
            c = pair.comparison
            cells += [words.with_span(c.ratio, c.low, c.high), words.with_span(c.hl_ratio, c.hl_low, c.hl_high)]
            cells += [c.verdict + (" (unfair)" if pair.flagged else "")]
        table.add_row(*map(escape, cells), str(result.suite.n))
    return table


def print_replay(console: Console, result, replay) -> None:
    """How far the unfairness moved the verdict, and whether it went where it was expected to go."""
    base, fair, unfair = result.suite.roles
    c = result.pair(fair, unfair).comparison
    console.print(f"[bold]replayed[/]: {replay.change}", highlight=False)
    for role in (fair, unfair):
        console.print(f"  {result.pair(base, role).comparison.sentence(base, role)}", highlight=False, markup=False)
    expected = replay.moves[result.suite.device]
    seen = {"tie": "it did not move"}.get(c.verdict, c.verdict)
    console.print(f"  the unfairness alone: × {words.with_span(c.ratio, c.low, c.high)}: {seen}; "
                  f"expected here: {expected or 'no move'}", highlight=False, markup=False)  # fmt: skip
