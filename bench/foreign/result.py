"""The figures of foreign scripts in tables and in words."""

from bench.analysis.tables import Grid, disturbed_rows
from bench.foreign.record import KIND, ForeignRecord
from bench.record import describe
from bench.record.disturbance import disturbances_of, in_words

WATCHED = 0.02  # of the steps' time, from where on it is said that the Watch took it


def grid(records: list[ForeignRecord]) -> Grid:
    head = [(KIND, False), ("processes\n× threads", True), ("global\nbatch", True), ("examples/s", True),
            ("steps/s", True), ("step ms\nmedian [p5–p95]", True), ("n", True), ("waits for\ndata", True),
            ("peak memory\nGiB per device", True)]  # fmt: skip
    rows, grey = [row(record) for record in records], disturbed_rows(records)
    return Grid(head, rows, "Foreign scripts, timed as they are: no runs of this bench", grey)


def row(record: ForeignRecord) -> list[str]:
    step = record.step_time
    return [
        record.name,
        f"{record.world_size} × {record.samples[0].threads}",
        str(record.global_batch or "?"),
        f"{record.throughput:.1f}" if record.global_batch else "?",
        f"{record.steps_per_s:.2f}",
        f"{step['median'] * 1e3:.1f} [{step['p5'] * 1e3:.1f}–{step['p95'] * 1e3:.1f}]",
        str(step["n"]),
        f"{100 * record.wait_share:.0f} %",
        describe.memory_cell(record.peak_memory),
    ]


def lines(record: ForeignRecord) -> list[str]:
    """What must be known of one record: what stands for a device, findings, what was not looked for, disturbances."""
    said = [f"{record.program}: {record['engine']}; {describe.stand_in(record)}"]
    if not record.global_batch:
        said.append("examples per step are not known: BATCH=examples per device gives examples/s")
    if record.observed:
        said.append(f"known mistakes found: {sum(not finding.question for finding in record.findings)}")
    for finding in record.findings:
        said += finding.lines()
    whys = {}
    for name, why in record["unheard"].items():
        whys.setdefault(why, []).append(name)
    everything = len(whys) == 1 and not record.observed
    for why, names in whys.items():
        what = "mistakes were not looked for" if everything else f"not observed: {', '.join(names)}"
        said.append(what + (f": {why}" if everything and why else f" ({why})" if why else ""))
    return said + notes(record)


def notes(record: ForeignRecord) -> list[str]:
    said = []
    if found := disturbances_of(record):
        said.append(f"{record.program} was disturbed: {in_words(found)} while it was timed")
    if record.watch_share > WATCHED:
        said.append(
            f"{record.program}: the Watch took {100 * record.watch_share:.0f} % of the timed steps: WATCH=0 times "
            "without one"
        )
    between = [seconds for part in record["samples"][:1] for seconds in part["between_s"]]
    if between:
        said.append(
            f"{record.program}: {len(between)} intervals, {sum(between):.1f} s, are no steps: a DataLoader was started "
            "in them, or the model was evaluated"
        )
    first = record["samples"][0]
    if others := first.get("other_steps"):
        said.append(
            f"{record.program}: {others} of {others + first['steps_taken']} optimizer steps were another optimizer's: "
            "a timed step lasts from one step of the first optimizer to its next"
        )
    return said


def summary_lines(record: ForeignRecord) -> list[str]:
    """What must be known of one record beside its row of the table: a line for each finding, and what moved it."""
    head = f"{record.program}: {record['engine']}; {describe.stand_in(record)}; "
    names = ", ".join(f"{each.name}{' (asked)' if each.question else ''}" for each in record.findings)
    return [head + (f"known mistakes: {names or 'none found'}" if record.observed else "not watched"), *notes(record)]


def key_of(record: ForeignRecord) -> tuple:
    """What two records must have in common to be of one program."""
    place = (record.topology["device"], record.num_devices, record.global_batch, record.network or "")
    return (record.name, record["engine"], *place)


def program_in_words(record: ForeignRecord) -> str:
    """Everything that two records must have in common to be of one program, in words."""
    name, engine, device, devices, batch, network = key_of(record)
    more = ", ".join(filter(None, [engine, f"batch {batch or 'not known'}", network]))
    return f"{KIND} {name} on {devices} × {device} ({more})"


def labels(records: list[ForeignRecord]) -> dict[tuple, str]:
    """A name for each program: ``foreign script train.py on 2 × cpu``, with what tells it from others of that name."""
    known = {key_of(record): record for record in records}
    plain = {key: f"{KIND} {key[0]} on {key[3]} × {key[2]}" for key in known}
    names = list(plain.values())
    return {key: program_in_words(known[key]) if names.count(name) > 1 else name for key, name in plain.items()}
