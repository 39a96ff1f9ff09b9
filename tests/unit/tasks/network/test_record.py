"""The record of messages: read, checked, and no run's."""

import json

import pytest

from bench.record.read import find_records
from bench.record.schema import BadRecord
from bench.tasks.network import record as network_record
from bench.tasks.network.record import find
from tests import networks, records


def test_records_are_found_by_suite_and_are_no_runs(tmp_path):
    for number, backend in ((2, "gloo"), (2, "horovod"), (1, "gloo")):
        made = networks.data(backend=backend, number=number)
        (folder := tmp_path / made["config"]["suite"] / made["run_id"]).mkdir(parents=True)
        (folder / "network.json").write_text(json.dumps(made))
    run = records.record("ddp")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "record.json").write_text(json.dumps(run.data))
    found, refused = find(tmp_path)
    suites = network_record.by_suite(found)
    assert refused == [] and [len(group) for group in suites.values()] == [1, 2]
    assert [network_record.place_of(group).name for group in suites.values()] == list(suites)
    assert [record.run_id for record in find_records(tmp_path)[0]] == [run.run_id]


@pytest.mark.parametrize(("change", "said"), [
    (lambda data: data.pop("operations"), "operations"),
    (lambda data: data.update(network_version=9), "network version 9"),
    (lambda data: data["operations"][0]["sizes"][0]["seconds"][0].pop(), "each rank and round"),
    (lambda data: data["operations"][1]["sizes"][0]["seconds"].pop(), "each rank and round"),
    (lambda data: data["operations"][1]["sizes"][0]["seconds"][0].__setitem__(0, -1.0), ">= 1e-09"),
    (lambda data: data["operations"][1]["sizes"].reverse(), "not in order"),
    (lambda data: data["nodes"][0]["ranks"].append(7), "not one of each rank"),
    (lambda data: data["load"].pop(), "load"),
    (lambda data: data["topology"].update(world_size=1), "world_size"),
])  # fmt: skip
def test_a_record_that_was_edited_or_cut_is_refused_by_name(change, said, tmp_path):
    change(data := networks.data())
    (path := tmp_path / "network.json").write_text(json.dumps(data))
    with pytest.raises(BadRecord, match=said) as error:
        network_record.load(path)
    assert str(path) in str(error.value)
    assert find(tmp_path) == ([], [str(error.value)])


def test_a_file_of_something_else_is_refused(tmp_path):
    for text in ("[]", "{", '{"network_version": NaN}', '"x"'):
        (path := tmp_path / "network.json").write_text(text)
        with pytest.raises(BadRecord):
            network_record.load(path)
