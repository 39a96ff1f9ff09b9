"""The page of committed records: what it shows of a suite that was disturbed, and that it is not a reference."""

import pytest

from bench.analysis.suite import suites_of
from bench.course import records as course_records
from bench.errors import UserError
from bench.record.describe import clocks_apart
from bench.record.disturbance import disturbed, undisturbed
from bench.record.read import load
from bench.record.summary import summarise
from bench.report.page import page
from bench.report.pooling import pool
from bench.studies.base import Study
from tests import records
from tests.validation import renew
from tests.validation.pages import reference_page

NOT = "disturbed: not a reference"


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
    made = records.suite_records("compare", records.compare_programs(), rounds=3, name=f"{number:04d}")
    return made if others is None else records.loaded(made, others, **more)


def test_a_disturbed_suite_is_shown_and_named_no_reference(folder, monkeypatch, capsys):
    folder("a", suite_records(1, 0.03))
    assert NOT not in reference_page.page(folder.path)
    folder("b", suite_records(2, 0.02)[:-5] + records.loaded(suite_records(2, 0.02)[-5:], 0.41))
    text = reference_page.page(folder.path)
    assert text.count(f"## Comparison ({NOT})") == 1 and text.count("## Comparison") == 2  # nothing is dropped
    assert "5 of 15 runs" in text and "41 % of the CPU" in text
    for name in ("draw", "write"):
        monkeypatch.setattr(renew, name, lambda: [])
    monkeypatch.setattr(renew, "committed", lambda: suites_of(suite_records(1, 0.5)))
    renew.main([])
    assert f"compare-20260102-030405-0001: {NOT}" in capsys.readouterr().out


def test_the_readme_quotes_the_newest_suite_that_was_not_disturbed_and_the_manual_says_so(folder):
    folder("b", suite_records(2, 0.5))
    with pytest.raises(UserError, match="make compare"):
        reference_page.claim(folder.path, "compare", "ratios")
    text = reference_page.finding(folder.path, "compare", "ddp", "ratios")
    assert "/b/pictures/ratios.svg" in text and "15 of 15 runs were disturbed" in text
    with pytest.raises(UserError, match="local"):
        reference_page.finding(folder.path, "compare", "local", "ratios")
    folder("a", suite_records(1, None))  # of before it was measured
    assert "/a/pictures/ratios.svg" in reference_page.claim(folder.path, "compare", "ratios")
    assert undisturbed(suite_records(1, None) + suite_records(2, 0.0))[0]
    good, said = pool(folder.path)
    assert len(good) == 30 and any("15 of 30 runs" in line for line in said)


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
    assert f"## Comparison of chosen configurations: {network}" in text and "## Comparison\n" in text
    assert "MODES=ddp,ddp:COMPRESSION=fp16" in text and "`make cluster NODES=2 LINK=100mbit CMD=" in text
    assert "/a/pictures/ratios.svg" in reference_page.claim(folder.path, "compare", "ratios")
    suites = suites_of(suite_records(1, None) + made)
    monkeypatch.setattr(Study, "figures", lambda self, result: {})
    shown = page(suites, [], [])
    assert all(f'id="{suite.id}"' in shown for suite in suites)  # neither stands for the other
    on_request = records.suite_records("compare", {name: {"mode": name} for name in ("ddp", "local")}, name="0003")
    others = suites_of(suite_records(4, 0.5) + on_request)
    monkeypatch.setattr(course_records, "suites_named", lambda study: suites + others)
    assert course_records.references("compare") == suites[:1]  # chapters show neither modes on request
    assert suites[1] in course_records.references("compare", networks=True)


def test_time_that_the_host_takes_is_told_where_it_matters(tmp_path):
    quiet, stolen = suite_records(1, 0.0, steal=0.04), suite_records(2, 0.2, steal=0.08)
    assert disturbed(quiet) == [] and disturbed(suite_records(1, 0.0, steal=None)) == []
    said = disturbed(stolen)[0]
    assert said.startswith("single ") and "20 % of the CPU" in said and "CPU steal" in said and "was 8 %" in said
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

    found = records.edited(made, seen)
    assert "2 other processes" in disturbed(found)[0] and "100 % of the samples" in disturbed(found)[0]
    assert "1400 and 1980 MHz" in clocks_apart(found)[-1] and disturbed(made) == []
    quick, slow = (records.loaded(suite_records(n, 0.0)[:5], 0.0) for n in (1, 2))
    for record in quick + slow:
        record.data["samples"][0]["load"]["cpu_mhz"] = 3000.0 if record in quick else 2500.0
    assert len(clocks_apart(quick + slow)) == 1 and "2500 and 3000 MHz" in clocks_apart(quick + slow)[0]
    assert clocks_apart(quick) == []
