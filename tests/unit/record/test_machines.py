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
    return on_nodes(records.record("ddp", 50.0, **options), *TWO, network=network, of_last=of_last)


def other_torch(record) -> dict:
    return {"versions": record.versions | {"torch": "1.2.3"}}


def test_a_record_says_where_it_ran_in_table_page_and_picture(tmp_path):
    folder = records.store(tmp_path, [two(suite="compare-1", round=0)])
    found = load(next(folder.rglob("record.json")))
    assert [(n.name, n.ranks, n.devices, n.link_speed_mbit) for n in found.nodes] == [
        ("node1", [0], 1, 1000), ("node2", [1], 1, 1000)]  # fmt: skip
    words = f"2 nodes × 1 device (node1, node2), {LABEL}"
    assert describe.machine_line(found).endswith(words) and words in page.page([], [found], [])
    frame = export.runs_frame([found])
    assert (frame["nodes"][0], frame["network"][0]) == (2, LABEL)
    assert list(export.memory_frame([found])["node"].unique()) == list(TWO)
    one = records.record("ddp")
    assert (one.layout, one.network, describe.where(one)) == ("", None, "")
    names = {fact.name for fact in certify({"ddp": [one]}).facts}
    assert not names & {"machines of a run", "network", "placement"}
    on_gpus = two(device="cuda")  # equal devices of two machines are two
    assert [label.split()[0] for label in devices_of([on_gpus])] == list(TWO)
    assert [label.split()[0] for label, _ in timelines(on_gpus)] == list(TWO)
    assert len(on_gpus.gpus) == 2 * len(records.record("ddp", device="cuda").gpus)


def test_machines_that_differ_are_named():
    plain = two()
    assert describe.differing_nodes(plain) == []
    odd = two(of_last=other_torch(plain) | {"source_sha256": "b" * 64})
    (said,) = describe.differing_nodes(odd)
    assert all(word in said for word in ("node1", "node2", "torch", "1.2.3", "code"))
    fact = {fact.name: fact for fact in certify({"ddp": [odd]}).facts}["machines of a run"]
    assert fact.status == "differs" and "node2" in fact.values["ddp"]
    assert said in describe.cautions_of_single_runs(odd, [])


def test_single_on_one_machine_and_ddp_on_two_differ_as_they_must():
    def statuses(**programs) -> list[str]:
        facts = {fact.name: fact.status for fact in certify({n: [r] for n, r in programs.items()}).facts}
        return [facts[name] for name in ("machines of a run", "network", "placement")]

    single = on_nodes(records.record("single", num_devices=1), "node1", network=LABEL)
    assert statuses(single=single, ddp=two()) == ["equal", "equal", "inherent"]
    # two devices on one machine are not one on each of two
    assert statuses(ddp=two(), horovod=on_nodes(records.record("horovod"), "node1", network=LABEL))[2] == "differs"


def test_networks_and_placements_are_never_mixed():
    """Not in a suite, nor in a pool, nor in a difference."""
    labels = {"suite": "compare-1", "round": 0}
    mixed = [two(program="a", **labels), two("another network", program="b", seconds=9, **labels)]
    with pytest.raises(UserError, match="network"):
        compare_suite(suite_of("compare-1", mixed))
    with pytest.raises(UserError, match="network"):
        difference.compare_sets(mixed[:1], mixed[1:])
    groups = [group for panel in pooling.panels_of(mixed) for group in panel.groups]
    assert [group.n for group in groups] == [1, 1] and len({group.machine for group in groups}) == 2
    placed = [two(), on_nodes(records.record("ddp", seconds=9), "node1", network=LABEL)]
    names = ["ddp 2", "ddp 2 on 2 nodes × 1 device"]
    assert sorted(group.name for panel in pooling.panels_of(placed) for group in panel.groups) == names
    assert sorted(difference.labels(list(difference.groups(placed))).values()) == names


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
    parts = [{"pid": pid, "devices": [{"processes": seen, "timeline": {"time_s": []}}],
              "load": {"machine": machine, "own_cpu_s": 4.0, "machine_cpu_s": 8.0, "cores": 2, "wall_s": 5.0}}
             for pid, seen, machine in ((100, [100, 200], 0), (200, [200], 1))]  # fmt: skip
    assert gpu_disturbance(parts) == {"foreign_gpu_processes": 1} and others_cpu_share(parts) == 0.4
    parts[1]["load"]["machine"] = 0
    assert gpu_disturbance(parts) == {"foreign_gpu_processes": 0} and others_cpu_share(parts) == 0.0
