"""Records that somebody has changed, by accident or on purpose: every command that reads records continues with the
good ones, and reports what is wrong with the others, in one line."""

import contextlib
import functools
import io
import json
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from bench import __main__ as cli
from bench.config.options import unchecked
from bench.config.workloads import workload_of
from bench.record import packed, read
from bench.record.read import load, migrate
from bench.record.schema import BadRecord
from bench.record.summary import summarise, summarise_accuracy
from tests import records as made_up
from tests.fuzz import MARKS, changed, changes_of, fewer
from tests.runs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), *MARKS]

REFERENCE = ROOT / "results" / "reference" / "cpu-2-cores-xeon"
MOST_CPU_S = 30  # of one command, on records of a few MiB


@functools.cache
def suites() -> dict[str, list[dict]]:
    """Records by suite: the first two rounds of all committed ones, and made-up ones of GPUs."""
    found = {}
    for path in packed.find_files(REFERENCE, "record.json"):
        data = migrate(json.loads(read.text_of(path)), path)
        config = data["config"]
        if (config["round"] or 0) < 2 or config["profile"]:
            found.setdefault(path.relative_to(REFERENCE).parts[0], []).append(data)
    gpus = {"device": "cuda", "rounds": 2}
    for study, programs in {"compare": made_up.compare_programs(), "weak": made_up.scaling_programs("weak")}.items():
        found[f"{study} on GPUs"] = [each.data for each in made_up.suite_records(study, programs, **gpus)]
    found["profiled on GPUs"] = [each.data for each in made_up.profiled_records(device="cuda")]
    return found


@st.composite
def cases(draw) -> tuple[str, int, list, bool]:
    """A suite, the number of a record in it, changes of that record, and whether its figures are then made to fit."""
    name = draw(st.sampled_from(sorted(suites())))
    number = draw(st.integers(0, len(suites()[name]) - 1))
    return name, number, draw(changes_of(suites()[name][number])), draw(st.booleans())


def fit(record: dict) -> None:
    """Let the figures follow from the samples again, as somebody would who edits a record with care."""
    with contextlib.suppress(Exception):
        config = unchecked(record["config"])
        record["topology"]["global_batch"] = config.global_batch
        units = config.global_batch * workload_of(config).per_example
        record["summary"] |= summarise(config.mode, units, record["samples"])
    with contextlib.suppress(Exception):
        metrics = workload_of(unchecked(record["config"])).metrics
        record["accuracy"] = summarise_accuracy(metrics, record["config"]["target"], record["accuracy"]["epochs"])


def text_of(case: tuple[str, int, list, bool]) -> str:
    name, number, changes, fitted = case
    record = changed(suites()[name][number], changes)
    if fitted:
        fit(record)
    return json.dumps(record)


def call(*words) -> tuple[int, str]:
    """A command in this process: its exit code, and what it said on standard error."""
    said, complaints, started = io.StringIO(), io.StringIO(), time.process_time()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complaints):
        code = cli.main([str(word) for word in words])
    assert time.process_time() - started < MOST_CPU_S, words
    return code, complaints.getvalue()


def clear(code: int, complaints: str, *codes: int) -> None:
    """It ended well, or with one of ``codes``; what it complains of are a few lines that do nothing to a terminal."""
    assert code in (0, 1, 2, *codes), complaints
    lines = complaints.splitlines()
    assert all(line.startswith(("refused: ", "bench: ", "note: ")) for line in lines), complaints
    assert all(line.isprintable() and len(line) < 2000 for line in lines), complaints
    assert not code or lines or code in codes


@contextlib.contextmanager
def stored(name: str, number: int, text: str):
    """A folder for a while, in which records/ has the suite's records, with ``text`` in place of one of them."""
    with tempfile.TemporaryDirectory() as folder:
        for n, record in enumerate(suites()[name]):
            path = Path(folder, "records", f"{n:03d}", "record.json")
            path.parent.mkdir(parents=True)
            path.write_text(text if n == number else json.dumps(record), encoding="utf-8")
        yield Path(folder)


def good(text: str) -> bool:
    """Whether a record is one. A refusal is one line that names the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.json"
        path.write_text(text, encoding="utf-8")
        try:
            load(path)
        except BadRecord as error:
            assert str(path) in str(error) and str(error).isprintable() and len(str(error)) < 1000
            return False
    return True


@given(cases())
def test_a_changed_record_is_read_or_refused_in_one_line(case):
    good(text_of(case))


@given(st.data())
def test_a_changed_text_is_read_or_refused_in_one_line(data):
    (record,) = suites()["20261121-124250-single-1xresnet18-f00d"]
    text = json.dumps(record)
    start, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 20))
    good(text[:start] + data.draw(st.text(max_size=20)) + text[start + length :])


@fewer(20)
@given(cases())
@example(("lab-20261121-154253-72c7", 1, [(("observed", "data", "global_batch"), "drop", None)], False))
@example(("lab-20261121-154253-72c7", 1, [(("observed", "data", "never_seen"), "put", 1)], False))
@example(("lab-20261121-154253-72c7", 0, [(("accuracy", "epochs", 0, "top1"), "drop", None)], False))
def test_a_changed_record_takes_no_command_down(case):
    name, number, *_ = case
    assume(good(text := text_of(case)))
    with stored(name, number, text) as folder:
        records = folder / "records"
        one, odd = sorted(records.iterdir())[-1 if number == 0 else 0], records / f"{number:03d}" / "record.json"
        clear(*call("report", records))
        for form in ("csv", "md", "parquet"):
            clear(*call("report", records, "--format", form, "--out", folder / f"t.{form}"))
        clear(*call("report", records, "--memory", "1", "--out", folder / "m.csv"))
        clear(*call("mistake", "check", odd), 3)
        clear(*call("diff", one, odd, "--bound", "5"), 3)


@fewer(30)
@given(cases())
@example(("lab-20261121-154253-72c7", 0, [(("accuracy",), "drop", None)], False))
def test_a_changed_record_takes_no_page_and_no_picture_down(case):
    name, number, *_ = case
    assume(good(text := text_of(case)))
    with stored(name, number, text) as folder:
        clear(*call("report", folder / "records", "--out", folder / "page.html"))
        clear(*call("report", folder / "records", "--format=plots"))
        clear(*call("report", folder / "records", "--by=machine", "--out", folder / "pool"))
