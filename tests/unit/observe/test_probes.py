"""The probes of bench/observe: what they see. That nothing is left of them: conftest.py."""

import pytest
import torch
from torch import nn

from bench.observe import loads, waits, writers
from bench.observe.probe import NotObserved


@pytest.mark.parametrize("on_gpu", [False, True])
def test_waits_count_for_the_line_of_the_script_that_waits_for_a_tensor_on_the_device(on_gpu):
    syncs = waits.HostSyncs(on_gpu=on_gpu)
    loss = torch.ones(())
    for number in range(4):
        float(loss)  # the loader's own affair
        syncs.step_begins()
        loss.item()
        f"{loss:.3f}"
        torch.nn.utils.clip_grad_norm_([nn.Parameter(loss)], 1.0)  # what torch does within is its own
        if number == 0:
            int(loss)
        loss.tolist()  # of a tensor on the CPU: a copy
        syncs.step_ends()
    syncs.close()
    loss.item()
    found = {entry["where"].split(" ", 1)[1]: entry["per_step"] for entry in syncs.result()}
    assert found == ({} if on_gpu else {"item": 1, "format": 1, "int": 0.25})


def test_files_that_are_written_or_renamed_below_the_folder_are_noted(tmp_path):
    (tmp_path / "data.bin").write_bytes(b"12345678")
    (tmp_path / "grows.bin").write_bytes(b"1234")
    written = writers.Writers(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / ".hidden").write_text("x")
    (tmp_path / "a.txt").read_text()
    with (tmp_path / "data.bin").open("r+b"):
        pass  # a memory map is opened so, and may only be read
    with (tmp_path / "grows.bin").open("r+b") as file:
        file.write(b"123456")
    torch.save(obj={}, f=tmp_path / "rank1.tmp")
    (tmp_path / "rank1.tmp").replace(tmp_path / "best.pt")  # the renamed one is there no more
    torch.save({}, tmp_path.parent / f"{tmp_path.name}-outside.pt")
    written.close()
    (tmp_path / "later").write_text("x")
    assert written.result()["names"] == ["a.txt", "best.pt", "grows.bin"]


def test_loads_say_what_found_its_place(tmp_path):
    seen, model = loads.Loads(), nn.Linear(2, 2)
    torch.save({f"module.{key}": value for key, value in model.state_dict().items()}, tmp_path / "w.pt")
    model.load_state_dict(torch.load(tmp_path / "w.pt"), strict=False)
    model.load_state_dict(model.state_dict())
    with pytest.raises(RuntimeError):
        model.load_state_dict({})
    seen.close()
    wrong, right = seen.result()
    assert wrong == {"file": "w.pt", "keys": 2, "missing": 2, "unexpected": 2, "strict": False, "prefix": "module."}
    assert right["missing"] == right["unexpected"] == 0 and right["prefix"] is None


def test_contents_that_differ_by_rank_are_told_from_those_that_are_the_same(tmp_path):
    def rank(*events) -> list:
        """What a rank leaves that saves ("save", step, value) and loads ("load", step) one file."""
        seen = loads.Loads()
        for what, seen.step, *value in events:
            if what == "save":
                torch.save({"epoch": 1, "model": {"w": torch.full((3,), value[0])}}, tmp_path / "best.pt")
            else:
                torch.load(tmp_path / "best.pt")
        seen.close()
        return seen.contents

    def apart(*ranks) -> dict | None:
        return loads.contents_of(list(ranks))["apart"]

    first = rank(("save", 0, 1.0), ("load", 0), ("save", 9, 2.0), ("load", 9))
    after = rank(("load", 9))
    before = rank(("save", 0, 1.0), ("load", 9))
    saver, checks = rank(("save", 0, 1.0), ("save", 9, 2.0)), rank(("save", 9, 2.0), ("load", 9), ("load", 9))
    assert apart(first, after) is apart(saver, after) is apart(checks, after) is apart(first, [], after) is None
    for stale in (apart(first, before), apart(saver, before), apart(checks, before)):
        assert stale == {"file": "best.pt", "step": 9, "by_rank": [0, 1]}
    with pytest.raises(NotObserved):
        apart(saver, saver)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64])
def test_a_digest_tells_contents_apart(dtype):
    tensor = torch.arange(70).reshape(7, 10).to(dtype)
    other = tensor.clone()
    other[0, 0] = 1
    digest = loads.digest_of([{"a": tensor, 1: (True, "x")}])
    assert digest == loads.digest_of([{"a": tensor.t().contiguous().t(), 1: (True, "x")}])
    different = [[{"a": other, 1: (True, "x")}], [{"a": tensor, 1: (True, "y")}], [{"a": tensor.reshape(10, 7)}]]
    assert len({digest, *map(loads.digest_of, different)}) == 4
    assert loads.digest_of(nn.Linear(2, 2)) and loads.digest_of({"sparse": tensor.to_sparse(), "other": object()})
