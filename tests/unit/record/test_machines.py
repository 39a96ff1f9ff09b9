"""A record of a run on several machines: what is said of them, kept apart by them, and refused."""

import json

import pytest

from bench.analysis.certificate import certify
from bench.analysis.comparison import compare_suite
from bench.analysis.memory_figure import devices_of, timelines
from bench.analysis.suite import suite_of
from bench.errors import UserError
from bench.record import describe
from bench.record.read import load
from bench.record.schema import BadRecord
from bench.record.summary import gpu_disturbance, others_cpu_share
from bench.report import difference, export, page, pooling
from tests import records
from tests.records import on_nodes

LABEL = "2 namespaces of one machine, links limited to 100 Mbit/s"
TWO = ("node1", "node2")


def two(network: str | None = LABEL, of_last: dict | None = None, **options):
    """A run of ddp with one rank on each of two machines."""
    return on_nodes(records.record("ddp", 50.0, **options), *TWO, network=network, of_last=of_last)


def other_torch(record) -> dict:
    """An environment that differs from a record's in torch."""
    return {"versions": record.versions | {"torch": "1.2.3"}}


def test_a_record_says_where_it_ran_in_table_page_and_picture(tmp_path):
    (folder,) = [records.store(tmp_path, [two(suite="compare-1", round=0)])]
    found = load(next(folder.rglob("record.json")))
    assert [(n.name, n.ranks, n.devices, n.link_speed_mbit) for n in found.nodes] == [
        ("node1", [0], 1, 1000),
        ("node2", [1], 1, 1000),
    ]
    words = f"2 nodes × 1 device (node1, node2), {LABEL}"
    assert describe.machine_line(found).endswith(words)
    assert words in page.page([], [found], [])
    frame = export.runs_frame([found])
    assert (frame["nodes"][0], frame["network"][0]) == (2, LABEL)
    assert list(export.memory_frame([found])["node"].unique()) == list(TWO)
    one = records.record("ddp")
    assert (one.layout, one.network, describe.where(one)) == ("", None, "")


def test_equal_devices_of_two_machines_are_two():
    found = two(device="cuda")
    assert [label.split()[0] for label in devices_of([found])] == list(TWO)
    assert [label.split()[0] for label, _ in timelines(found)] == list(TWO)
    assert len(found.gpus) == 2 * len(records.record("ddp", device="cuda").gpus)


def test_machines_that_are_not_alike_are_named():
    plain = two()
    assert describe.differing_nodes(plain) == []
    odd = two(of_last=other_torch(plain) | {"source_sha256": "b" * 64})
    (said,) = describe.differing_nodes(odd)
    assert said.startswith("node2 differs from node1: ") and "torch is 1.2.3 and not" in said and "code is" in said
    fact = {fact.name: fact for fact in certify({"ddp": [odd]}).facts}["machines of a run"]
    assert fact.status == "differs" and "node2 differs from node1" in fact.values["ddp"]
    assert said in describe.cautions_of_single_runs(odd, [])


def test_a_certificate_of_one_machine_has_no_line_of_several():
    names = {fact.name for fact in certify({"ddp": [records.record("ddp")]}).facts}
    assert not names & {"machines of a run", "network", "placement"}


def test_single_on_one_machine_and_ddp_on_two_differ_as_they_must():
    single = on_nodes(records.record("single", num_devices=1), "node1", network=LABEL)
    facts = {fact.name: fact.status for fact in certify({"single": [single], "ddp": [two()]}).facts}
    assert (facts["machines of a run"], facts["network"], facts["placement"]) == ("equal", "equal", "inherent")
    spread = {"ddp": [two()], "horovod": [on_nodes(records.record("horovod"), "node1", network=LABEL)]}
    facts = {fact.name: fact.status for fact in certify(spread).facts}
    assert facts["placement"] == "differs"  # two devices on one machine are not one on each of two


def test_networks_are_never_mixed():
    """Not in a suite, nor in a pool, nor in a difference."""
    labels = {"suite": "compare-1", "round": 0}
    mixed = [two(program="a", **labels), two("another network", program="b", seconds=9, **labels)]
    with pytest.raises(UserError, match="network is"):
        compare_suite(suite_of("compare-1", mixed))
    groups = [group for panel in pooling.panels_of(mixed) for group in panel.groups]
    assert [group.n for group in groups] == [1, 1] and len({group.machine for group in groups}) == 2
    assert any(LABEL in group.machine.line() for group in groups)
    with pytest.raises(UserError, match=r"network is .* in A and .* in B"):
        difference.compare_sets(mixed[:1], mixed[1:])


def test_two_devices_on_one_machine_and_one_on_each_of_two_are_never_averaged():
    found = [two(), on_nodes(records.record("ddp", seconds=9), "node1", network=LABEL)]
    groups = [group for panel in pooling.panels_of(found) for group in panel.groups]
    assert sorted(group.name for group in groups) == ["ddp 2", "ddp 2 on 2 nodes × 1 device"]
    assert sorted(difference.labels(list(difference.groups(found))).values()) == [
        "ddp 2",
        "ddp 2 on 2 nodes × 1 device",
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r["nodes"][1].update(ranks=[0]),
        lambda r: r["nodes"][1].update(ranks=[]),
        lambda r: r["samples"][1].update(node=0),
        lambda r: r["samples"][1].update(node=7),
    ],
)
def test_a_rank_on_no_machine_or_on_two_is_refused(tmp_path, change):
    data = two().data
    change(data)
    (tmp_path / "record.json").write_text(json.dumps(data))
    with pytest.raises(BadRecord, match=r"nodes|edited"):
        load(tmp_path / "record.json")


def test_processes_and_their_numbers_are_those_of_one_machine():
    """Rank 1's number on its machine is another program's on rank 0's; two nodes of one processor share its time."""
    parts = [{"pid": pid, "devices": [{"processes": seen, "timeline": {"time_s": []}}], "load": {"machine": machine}}
             for pid, seen, machine in ((100, [100, 200], 0), (200, [200], 1))]  # fmt: skip
    assert gpu_disturbance(parts) == {"foreign_gpu_processes": 1}
    parts[1]["load"]["machine"] = 0
    assert gpu_disturbance(parts) == {"foreign_gpu_processes": 0}
    for part in parts:
        part["load"] |= {"own_cpu_s": 4.0, "machine_cpu_s": 8.0, "cores": 2, "wall_s": 5.0}
    assert others_cpu_share(parts) == 0.0
    parts[1]["load"]["machine"] = 1
    assert others_cpu_share(parts) == 0.4


def test_what_the_kernel_does_for_the_links_between_namespaces_is_the_runs_own():
    """On one machine two nodes; other processes took a tenth of it, and packets another one."""
    load = {"own_cpu_s": 4.0, "machine_cpu_s": 10.0, "interrupts_s": 1.0, "cores": 2, "wall_s": 5.0, "machine": 0}
    parts = [{"load": dict(load), "node": node, "devices": []} for node in (0, 1)]
    assert others_cpu_share(parts) == pytest.approx(0.1)
    assert others_cpu_share([part | {"node": 0} for part in parts]) == pytest.approx(0.2)
    for part in parts:
        del part["load"]["interrupts_s"]  # as older records
    assert others_cpu_share(parts) == pytest.approx(0.2)
