"""Which records can be compared, what each is called, and where it belongs: for what reads records of many runs."""

from pathlib import Path

from bench import formulas
from bench.analysis.suite import suites_of
from bench.config.options import PROGRAM, UNSET, names
from bench.record.read import find_records, load
from bench.record.schema import BadRecord
from bench.record.view import Record
from bench.studies.programs import shown

CONFIDENCE = 0.95


def records_at(path: Path, needed: bool = True) -> tuple[list[Record], list[str]]:
    """The records below a folder, or one that is a file, and a sentence for each file that is no good record. Raises
    UserError as ``find_records`` does."""
    if not path.is_file():
        return find_records(path, needed)
    try:
        return [load(path)], []
    except BadRecord as error:
        return [], [str(error)]


def usable(records: list[Record]) -> list[Record]:
    """The records whose throughput is a result: ended well, not interrupted, not slowed by the profiler, and not of an
    earlier attempt at a round."""
    earlier = {record.run_id for suite in suites_of(records) for record in suite.left_out if suite.n}
    good = [record for record in records if record.ok and not record.config.profile and not record.interruptions]
    return [record for record in good if record.run_id not in earlier]


def confidence_of(records: list[Record]) -> float:
    """Of an interval from these records: higher where some are of a suite that ended when it had its verdicts."""
    return formulas.confidence_per_look(CONFIDENCE, max(len(record.looks) for record in records) or 1)


def of_program(name: str) -> bool:
    """Whether an option says which program it is, and not what is computed. The device is of the work: what a CPU does
    is no measure of a GPU."""
    return (name in names(*PROGRAM) and name != "device") or name == "machines"


def of_place(record: Record) -> dict[str, str]:
    """What else keeps records apart: of which network they are, and on how many machines, "" of one."""
    return {"network": record.network or "not named", "machines": record.layout}


def label(values: dict) -> str:
    """``ddp 2 bucket_cap_mb=1``: the mode, its devices, on how many machines where these are several, and every engine
    option that is not at its default."""
    options = [
        f"{name}={shown(value)}"
        for name, value in values.items()
        if of_program(name) and name not in ("mode", "num_devices", "launcher", "machines") and value != UNSET[name]
    ]
    where = f"on {values['machines']}" if values.get("machines") else ""
    return " ".join([values["mode"], str(values["num_devices"]), *filter(None, [where]), *options])
