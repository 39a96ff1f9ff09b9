"""Where a record was made: what is said of its machines, GPUs and data, kept apart by them, and refused."""

import json

import pytest

from bench.analysis.certificate import certify
from bench.analysis.comparison import compare_suite
from bench.analysis.memory_figure import devices_of, timelines
from bench.analysis.style import provenance_lines
from bench.analysis.suite import suite_of, suites_of
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
    odd = two(of_last={"versions": plain.versions | {"torch": "1.2.3"}, "source_sha256": "b" * 64})
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


HERE = [{"index": i, "uuid": f"GPU-{i}", "name": name} for i, name in enumerate(["A40", "H100", "A40", "H100"])]


@pytest.mark.parametrize(
    ("mode", "used", "head", "devices"),
    [
        ("ddp", [1, 3], "2× H100", "GPU: 2× H100"),  # GPUS=1,3
        ("ddp", [0, 1], "1× A40 and 1× H100", "GPU: 2× A40 and H100"),
        ("dp", [1, 3], "2× H100", "GPU: 2× H100"),
        ("single", [3], "1× H100", "GPU: 1× H100"),
    ],
)
def test_a_record_is_of_the_gpus_that_it_used(mode, used, head, devices):
    """On a machine that has four, of two kinds."""

    def change(data: dict) -> None:
        data["environment"]["devices"] = HERE
        for device, index in zip((d for part in data["samples"] for d in part["devices"]), used, strict=True):
            device["uuid"] = f"GPU-{index}"

    (record,) = records.edited([records.record(mode, device="cuda", num_devices=len(used))], change)
    assert (
        describe.machine_line(record).startswith(f"{head}: Test(R) Processor") and describe.stand_in(record) == devices
    )
    failed = records.record("ddp", device="cuda", num_devices=2, failed="raised")  # has no devices: takes the first
    assert describe.machine_line(failed).startswith("2× Test GPU 80GB:")


def test_threads_of_one_process_emulate_the_devices_of_dp():
    """Figures with other modes name the processes."""
    dp, ddp = records.record("dp"), records.record("ddp")
    assert describe.stand_in(dp) == "CPU: no GPU is used, 2 threads of one CPU process emulate 2 devices"
    assert describe.stand_in(ddp) == "CPU: no GPU is used, 2 CPU processes emulate 2 devices"
    programs = {mode: {"mode": mode} for mode in ("dp", "ddp")}
    (suite,) = suites_of(records.suite_records("compare", programs))
    assert describe.stand_in(ddp) in provenance_lines(suite)[1]


@pytest.mark.parametrize(("data", "known"), [("s3://a/b", True), ("s3://a/b", False), ("digits", True)])
def test_data_from_a_url_have_the_seconds_of_the_rank_that_waited_longest(data, known):
    def ready(part: dict) -> None:
        if known:
            part["moments"]["data_ready"] = part["moments"]["joined"] + 1.5 + 3 * part["rank"]

    (record,) = records.edited([records.record("ddp", data=data)], records.in_samples(ready))
    said = describe.staging_sentence(record)
    assert ("4.5 s" in said) == (known and data != "digits") == bool(said)
