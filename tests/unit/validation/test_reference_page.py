"""The page of committed records: what is said of a suite that was disturbed, and that it is no reference."""

import pytest

from bench.analysis.suite import suites_of
from bench.course import records as course_records
from bench.errors import UserError
from bench.measure.load import Load
from bench.record.describe import clocks_apart
from bench.record.disturbance import disturbed, undisturbed
from bench.record.read import load
from bench.record.summary import summarise
from bench.report.page import page
from bench.report.pooling import pool
from bench.studies.base import Study
from bench.studies.registry import study_of
from tests import records
from tests.validation import renew
from tests.validation.pages import reference_page

PROGRAMS = records.compare_programs()


@pytest.fixture
def folder(tmp_path):
    """A machine's folder in the making: ``folder(name, records)`` commits a suite to it."""

    def commit(name: str, some: list) -> None:
        records.store(tmp_path / name, some)
        reference_page.read.cache_clear()

    commit.path = tmp_path
    return commit


def suite_records(number: int, others: float | None, **more) -> list:
    """A comparison of three rounds in which others took this share of the CPU; None: from before that was measured."""
    made = records.suite_records("compare", PROGRAMS, rounds=3, name=f"{number:04d}")
    return made if others is None else records.loaded(made, others, **more)


def test_a_disturbed_suite_is_shown_and_named_no_reference(folder):
    folder("a", suite_records(1, 0.03))
    quiet = reference_page.page(folder.path)
    assert "disturbed: not a reference" not in quiet and "None of 15 runs was disturbed by other processes." in quiet
    folder("b", suite_records(2, 0.02)[:-5] + records.loaded(suite_records(2, 0.02)[-5:], 0.41))
    text = reference_page.page(folder.path)
    assert "## Comparison (disturbed: not a reference)" in text and text.count("## Comparison") == 2
    assert "**5 of 15 runs were disturbed, at worst: other processes took 41 % of the CPU.**" in text
    assert text.count("n = 3 interleaved rounds") == 2  # nothing is dropped


def test_the_readme_quotes_the_newest_suite_that_was_not_disturbed(folder):
    folder("b", suite_records(2, 0.5))
    with pytest.raises(UserError, match="no compare suite that was not disturbed: run `make compare` on an idle"):
        reference_page.claim(folder.path, "compare", "ratios")
    folder("a", suite_records(1, 0.01))
    assert "/a/pictures/ratios.svg" in reference_page.claim(folder.path, "compare", "ratios")


def test_the_manual_quotes_a_suite_with_a_mode_and_says_that_it_was_disturbed(folder):
    folder("a", suite_records(1, 0.5))
    text = reference_page.finding(folder.path, "compare", "ddp", "ratios")
    assert "/a/pictures/ratios.svg" in text and "15 of 15 runs were disturbed" in text
    with pytest.raises(UserError, match="no compare suite with local"):
        reference_page.finding(folder.path, "compare", "local", "ratios")


def test_a_suite_over_a_network_is_labelled_and_quoted_by_nobody(folder, monkeypatch):
    """The newest comparison there is, of programs that were chosen, on namespaces of the same machine."""
    network = "2 namespaces of one machine, links limited to 100 Mbit/s"
    ddp = {"mode": "ddp", "variant": "chosen"}
    chosen = {"ddp": ddp, "ddp compression=fp16": ddp | {"compression": "fp16", "throughput": 150.0}}
    made = records.suite_records("compare", chosen, rounds=3, name="0002")
    made = [records.on_nodes(record, "node1", "node2", network=network) for record in made]
    folder("a", suite_records(1, None))
    folder("b", made)
    text = reference_page.page(folder.path)
    assert f"## Comparison of chosen programs: {network}" in text and "## Comparison\n" in text
    assert (
        "- ddp compression=fp16 is " in text and "faster than ddp" in text and "MODES=ddp,ddp:COMPRESSION=fp16" in text
    )
    assert '`make cluster NODES=2 LINK=100mbit CMD="make compare GPUS=2 ROUNDS=3 ' in text
    assert "/a/pictures/ratios.svg" in reference_page.claim(folder.path, "compare", "ratios")
    suites = suites_of(suite_records(1, None) + made)
    assert suites[1].n == 3 and study_of(suites[1]).result(suites[1]).certificate.fair
    monkeypatch.setattr(Study, "figures", lambda self, result: {})
    shown = page(suites, [], [])
    assert all(f'id="{suite.id}"' in shown for suite in suites)  # neither stands for the other
    monkeypatch.setattr(course_records, "suites_named", lambda study: suites)
    assert course_records.references("compare") == suites[:1]
    assert course_records.references("compare", networks=True) == suites[1:]


def test_records_of_before_it_was_measured_are_a_reference_and_said_to_be_unmeasured(folder):
    folder("a", suite_records(1, None))
    text = reference_page.page(folder.path)
    assert "Whether other processes disturbed these runs was not measured." in text and "not a reference" not in text
    assert reference_page.claim(folder.path, "compare", "ratios")
    assert undisturbed(suite_records(1, None) + suite_records(2, 0.0)) == (
        True, "None of 15 runs was disturbed by other processes; for 15 runs this was not measured.",
    )  # fmt: skip


def test_time_that_the_host_takes_is_told_where_it_matters(tmp_path):
    quiet, stolen = suite_records(1, 0.0, steal=0.04), suite_records(2, 0.2, steal=0.08)
    assert disturbed(quiet) == [] and disturbed(suite_records(1, 0.0, steal=None)) == []
    said = "other processes took 20 % of the CPU and the host of this virtual machine took 8 % of the CPU (steal)"
    assert disturbed(stolen)[0] == f"single was disturbed: {said} during its timed steps"
    text = page(suites_of(stolen), [], [])
    assert "took 8 % of the CPU (steal)" in text
    (path, *_) = sorted(records.store(tmp_path, stolen).rglob("record.json"))
    assert load(path)["summary"]["steal_share"] == pytest.approx(0.08)


def test_others_on_a_gpu_a_clock_held_down_and_clocks_apart_are_told():
    made = records.suite_records("compare", records.compare_programs(), rounds=2, device="cuda")

    def seen(data: dict) -> None:
        for part in data["samples"]:
            for device in part["devices"]:
                n = len(device["timeline"]["time_s"])
                mhz = 1980 if data["config"]["round"] else 1400
                device["timeline"] |= {"throttle_reasons": [0x40] * n, "sm_clock_mhz": [mhz] * n}
                device |= {"processes": [part["pid"], 77, 78]}
        mode, global_batch = data["config"]["mode"], data["topology"]["global_batch"]
        data["summary"] = summarise(mode, global_batch, data["samples"])

    said = disturbed(records.edited(made, seen))
    assert said[0] == (
        "single was disturbed: 2 foreign processes used a GPU and a GPU clock was throttled in 100 % of the samples "
        "during its timed steps"
    )
    assert (
        clocks_apart(records.edited(made, seen))[-1]
        == "the GPUs' clock was between 1400 and 1980 MHz: runs are not of one speed"
    )
    assert disturbed(made) == []


def test_the_clock_of_a_cpu_is_read_where_there_is_one(monkeypatch):
    load = Load().stop()
    assert load["cpu_mhz"] is None or load["cpu_mhz"] > 0
    monkeypatch.setattr("psutil.cpu_freq", lambda percpu: None)
    assert Load().stop()["cpu_mhz"] is None
    quick, slow = (records.loaded(suite_records(n, 0.0)[:5], 0.0) for n in (1, 2))
    for record in quick + slow:
        record.data["samples"][0]["load"]["cpu_mhz"] = 3000.0 if record in quick else 2500.0
    assert clocks_apart(quick + slow) == ["the CPU's clock was between 2500 and 3000 MHz: runs are not of one speed"]
    assert clocks_apart(quick) == []


def test_renew_names_what_is_no_reference(folder, monkeypatch, capsys):
    folder("a", suite_records(1, 0.5))
    monkeypatch.setattr(renew, "draw", lambda: [])
    monkeypatch.setattr(renew, "write", lambda: [])
    monkeypatch.setattr(renew, "committed", lambda: suites_of(suite_records(1, 0.5)))
    renew.main([])
    said = capsys.readouterr().out
    assert "compare-20260102-030405-0001: disturbed: not a reference. 15 of 15 runs were disturbed" in said


def test_chapters_show_no_suite_that_was_disturbed_or_has_modes_on_request_and_pooling_counts_them(folder, monkeypatch):
    some = suites_of(suite_records(1, 0.5) + suite_records(2, 0.0))
    monkeypatch.setattr(course_records, "suites_named", lambda study: some)
    assert [suite.id[-4:] for suite in course_records.references("compare")] == ["0002"]
    on_request = records.suite_records("compare", {name: {"mode": name} for name in ("ddp", "local")}, name="0003")
    some += suites_of(on_request)
    assert [suite.id[-4:] for suite in course_records.references("compare")] == ["0002"]
    folder("a", suite_records(1, 0.5))
    good, said = pool(folder.path)
    assert len(good) == 15 and "note: 15 of 15 runs were disturbed: their rows are grey" in said
