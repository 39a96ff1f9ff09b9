"""Values of external scripts in tables and in sentences."""

from bench.analysis.tables import Grid, disturbed_rows
from bench.foreign.record import TITLE, ForeignRecord
from bench.record import describe
from bench.record.disturbance import disturbances_of, in_words

WATCHED = 0.02  # share of the steps' time above which the Watch's time is reported


def grid(records: list[ForeignRecord]) -> Grid:
    head = [(TITLE, False), ("processes\n× threads", True), ("global\nbatch", True), ("examples/s", True),
            ("steps/s", True), ("step ms\nmedian [p5–p95]", True), ("n", True), ("waits for\ndata", True),
            ("peak memory\nGiB per device", True)]  # fmt: skip
    rows = []
    for record in records:
        step = record.step_time
        rows.append([
            record.name,
            f"{record.world_size} × {record.samples[0].threads}",
            str(record.global_batch or "?"),
            f"{record.throughput:.1f}" if record.global_batch else "?",
            f"{record.steps_per_s:.2f}",
            f"{step['median'] * 1e3:.1f} [{step['p5'] * 1e3:.1f}–{step['p95'] * 1e3:.1f}]",
            str(step["n"]),
            f"{100 * record.wait_share:.0f} %",
            describe.memory_cell(record.peak_memory),
        ])  # fmt: skip
    return Grid(head, rows, "External scripts, timed as they are (not runs of this benchmark)", disturbed_rows(records))


def lines(record: ForeignRecord) -> list[str]:
    found = [f"{record.program}: {record['engine']}; {describe.stand_in(record)}"]
    if not record.global_batch:
        found.append("examples per step are not known: BATCH=examples per device gives examples/s")
    if record.observed:
        found.append(f"known mistakes found: {sum(not finding.question for finding in record.findings)}")
    for finding in record.findings:
        found += finding.lines()
    whys = {}
    for name, why in record["unheard"].items():
        whys.setdefault(why, []).append(name)
    everything = len(whys) == 1 and not record.observed
    for why, names in whys.items():
        what = "mistakes were not checked" if everything else f"not observed: {', '.join(names)}"
        found.append(what + (f": {why}" if everything and why else f" ({why})" if why else ""))
    return found + notes(record)


def notes(record: ForeignRecord) -> list[str]:
    found, name = [], record.program
    if disturbances := disturbances_of(record):
        found.append(f"{name} was disturbed: {in_words(disturbances)} while it was timed")
    if record.watch_share > WATCHED:
        share = f"{100 * record.watch_share:.0f} %"
        found.append(f"{name}: the Watch took {share} of the timed steps: WATCH=0 times without one")
    first = record["samples"][0]
    if between := first["between_s"]:
        found.append(
            f"{name}: {len(between)} intervals, {sum(between):.1f} s, are not steps: a DataLoader was started in them, "
            "or the model was evaluated"
        )
    if others := first.get("other_steps"):
        found.append(
            f"{name}: {others} of {others + first['steps_taken']} optimizer steps were another optimizer's: a timed "
            "step lasts from one step of the first optimizer to its next"
        )
    return found


def summary_lines(record: ForeignRecord) -> list[str]:
    head = f"{record.program}: {record['engine']}; {describe.stand_in(record)}; "
    names = ", ".join(f"{each.name}{' (possible)' if each.question else ''}" for each in record.findings)
    return [head + (f"known mistakes: {names or 'none found'}" if record.observed else "not watched"), *notes(record)]


def key_of(record: ForeignRecord) -> tuple:
    """Equal for records that are compared with each other."""
    place = (record.topology["device"], record.num_devices, record.global_batch, record.network or "")
    return (record.name, record["engine"], *place)


def program_in_words(record: ForeignRecord) -> str:
    name, engine, device, devices, batch, network = key_of(record)
    more = ", ".join(filter(None, [engine, f"batch {batch or 'not known'}", network]))
    return f"{TITLE} {name} on {devices} × {device} ({more})"


def labels(records: list[ForeignRecord]) -> dict[tuple, str]:
    """``key_of`` -> ``external script train.py on 2 × cpu``, with the whole key if that is ambiguous."""
    known = {key_of(record): record for record in records}
    plain = {key: f"{TITLE} {key[0]} on {key[3]} × {key[2]}" for key in known}
    names = list(plain.values())
    return {key: program_in_words(known[key]) if names.count(name) > 1 else name for key, name in plain.items()}
