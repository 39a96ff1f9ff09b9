"""An emulation: its record, which is read, checked, labelled, and never taken for a measurement; and the chain that
stands in for a model: its order, the lengths of its waits, and gradients of the real sizes."""

import json

import pytest
import torch

from bench import __main__ as cli
from bench.analysis.suite import suites_of
from bench.predict.emulation import record as records
from bench.predict.emulation import stand_in
from bench.predict.emulation.stand_in import PACE, StandIn
from bench.predict.step.profile import Profile, Tensor
from bench.record.read import find_records, load
from bench.record.schema import BadRecord
from bench.structure import blocks_of
from tests import forecasts
from tests.records import record as a_run


def write(folder, data: dict, name: str = "emulation.json"):
    """The content as a file of a run's folder; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (path := folder / name).write_text(json.dumps(data))
    return path


def test_figures_are_divided_back_by_the_dilation_and_labelled(tmp_path):
    for dilate, kind in ((1.0, "emulated"), (40.0, "emulated, ×40")):
        record = records.load(write(tmp_path / f"{dilate:g}", forecasts.emulation(dilate=dilate, ranks=4)))
        assert record.steps_s == pytest.approx([4.0] * 6) and record.throughput == pytest.approx(4 * 32 / 4.0)
        assert record.phases_s["backward"] == pytest.approx(2.0) and record.kind == kind
        table = records.grid(record)
        assert kind in table.rows[0][0] and kind in table.caption
        assert all(kind in line or dilate == 1 or "×" not in line for line in records.provenance_lines(record))
        assert any(f"{dilate:g} times slower" in line for line in records.provenance_lines(record)) == (dilate > 1)


def test_a_machine_whose_cpu_was_full_is_warned_of(tmp_path):
    data = forecasts.emulation()
    usual = records.answer(records.load(write(tmp_path, data)))
    for part in data["samples"]:
        part["load"] = part["load"] | {"machine_cpu_s": 18.0}  # of 2 cores in 10 s
    (warning,) = set(records.answer(records.load(write(tmp_path, data)))) - set(usual)
    assert "90 %" in warning


def test_nothing_that_compares_or_pools_runs_takes_it(tmp_path, capsys):
    """Neither as it lies there, nor under the name of a run's record, nor beside runs."""
    data = forecasts.emulation()
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    write(alone / "suite" / "a", data)
    write(beside / "suite" / "a", data)
    run = a_run("ddp")
    write(beside / "suite" / "b", run.data, "record.json")
    assert find_records(alone, needed=False) == ([], [])
    found, _ = find_records(beside)
    assert [record.run_id for record in found] == [run.run_id]
    assert [record.run_id for suite in suites_of(found) for record in suite.records] in ([run.run_id], [])
    renamed = write(tmp_path / "renamed", data, "record.json")
    with pytest.raises(BadRecord):
        load(renamed)
    for words in (["pool", str(alone), f"--out={tmp_path / 'pooled'}"], ["diff", str(alone), str(beside)],
                  ["table", str(alone)], ["plots", str(alone)], ["forecast", str(alone / "suite" / "a"),
                  "--link=1gbit,1ms"]):  # fmt: skip
        assert cli.main(words) != 0, words
        assert capsys.readouterr().err.strip()
    assert not (tmp_path / "pooled").exists()


@pytest.mark.parametrize(("change", "value"), [
    (lambda data: data.update(emulation_version=9), "9"),
    (lambda data: data.update(kind="measured"), "kind"),
    (lambda data: data.pop("plan"), "plan"),
    (lambda data: data["plan"].update(dilate=0.5), "dilate"),
    (lambda data: data["plan"]["profile"]["tensors"][0].update(ready_s="soon"), "ready_s"),
    (lambda data: data["samples"].pop(), "samples"),
    (lambda data: data["samples"][0]["step_time_s"].pop(), None),
    (lambda data: data["samples"][0].update(timeline={"step": 1, "step_s": 1.0, "notes": []}), "timeline"),
    (lambda data: data["samples"][0].update(rank=1), "rank"),
    (lambda data: data["config"].update(mode="telepathy"), "mode"),
])  # fmt: skip
def test_a_record_that_was_edited_or_cut_is_refused_by_name(change, value, tmp_path):
    change(data := forecasts.emulation())
    path = write(tmp_path, data)
    with pytest.raises(BadRecord, match=value) as error:
        records.load(path)
    assert str(path) in str(error.value)


# As torchvision's ResNets have them: a layer in no block at either end, and a block whose weights are ready crosswise.
TENSORS = (
    Tensor("conv", (2, 3), "", 0.1, 1.9),
    Tensor("one.weight", (4,), "one", 0.2, 1.5),
    Tensor("one.shortcut", (5,), "one", 0.4, 1.2),
    Tensor("one.bias", (6,), "one", 0.3, 1.4),
    Tensor("fc", (7,), "", 0.8, 0.3),
)
PROFILE = Profile("", "", "", "cpu", "images", 1, 1.0, 2.0, 0.5, 0.5, (1.0,), TENSORS, (("float32", 80), ("int64", 8)))


def test_forward_and_backward_wait_as_long_as_the_profile_and_each_gradient_until_it_was_ready(monkeypatch):
    """Every wait is asked for, and none of it waited. Blocks are what FSDP shards."""
    waited, ready, model = [], {}, StandIn(PROFILE)
    monkeypatch.setattr(PACE, "wait", lambda began, seconds: waited.append(round(seconds, 9)))
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: ready.update({tuple(p.shape): sum(waited[forward:])}))
    loss = model(torch.ones(1, requires_grad=True)).sum()
    assert sum(waited) == pytest.approx(PROFILE.forward_s)
    forward = len(waited)
    loss.backward()
    assert sum(waited[forward:]) == pytest.approx(PROFILE.backward_s)
    assert ready == pytest.approx({tensor.shape: tensor.ready_s for tensor in TENSORS})
    assert [sum(p.numel() for p in block.parameters()) for _, block in blocks_of(model)] == [15]
    assert sorted((str(b.dtype), b.nbytes) for b in model.buffers()) == [("torch.float32", 80), ("torch.int64", 8)]


def test_a_wait_that_was_too_long_is_taken_off_the_next(monkeypatch):
    """A clock that is ours: each sleep takes 3 s more than it should, and the work before one wait 10 s."""
    now = [0.0]
    monkeypatch.setattr(stand_in.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(stand_in.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds + 3.0))
    pace = stand_in.Pace()
    pace.step(scale=2.0)
    pace.wait(0.0, 5.0)
    assert now == [13.0]
    pace.wait(13.0, 5.0)  # until 20 + 3
    assert now == [23.0] and pace.waited == [(0.0, 13.0), (13.0, 23.0)]
    pace.step(scale=1.0)
    began, now[0] = now[0], now[0] + 10.0
    pace.wait(began, 4.0)  # it is over already, by 6
    assert now == [33.0]
    pace.wait(33.0, 8.0)  # 2 are left, and 3 too many
    assert now == [38.0]
