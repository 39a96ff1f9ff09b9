"""The probes of bench/observe: what they see, and that nothing is left of them."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, TensorDataset, random_split

from bench.config.options import RunConfig
from bench.observe import gradients, loads, waits, writers
from bench.observe.draws import LoaderWatch, augmentation, data_of
from bench.observe.observer import Observer


def functions() -> tuple:
    """Those that probes put others in place of."""
    methods = [vars(torch.Tensor).get(name) for name in waits.WAITS]
    return torch.save, torch.load, nn.Module.load_state_dict, methods, list(writers.listeners)


@pytest.fixture(autouse=True)
def untouched():
    """Whatever a test puts up, torch is itself again at its end."""
    before = functions()
    yield
    assert functions() == before


def test_a_run_without_watch_puts_nothing_up(tmp_path):
    before = functions()
    observer = Observer(RunConfig(), tmp_path)
    assert observer.writers is observer.loads is observer.waits is observer.gradient is None
    assert functions() == before
    loader = DataLoader([1, 2])
    assert type(observer.batches(loader)) is type(iter(loader))


def test_waits_count_for_the_line_of_the_script_that_waits():
    syncs = waits.HostSyncs(on_gpu=False)
    loss = torch.ones(())

    def loader():
        for number in range(4):
            float(loss)  # the loader's own affair
            yield number

    for number in syncs.steps_of(loader()):
        loss.item()
        f"{loss:.3f}"
        torch.nn.utils.clip_grad_norm_([nn.Parameter(loss)], 1.0)  # what torch does within is its own
        if number == 0:
            int(loss)
        loss.tolist()  # of a tensor on the CPU: a copy
    syncs.close()
    loss.item()
    found = {entry["where"].split(" ", 1)[1]: entry["per_step"] for entry in syncs.result()}
    assert found == {"item": 1, "format": 1, "int": 0.25}


def test_on_a_gpu_tensors_elsewhere_do_not_count():
    syncs = waits.HostSyncs(on_gpu=True)
    for _ in syncs.steps_of([0]):
        torch.ones(()).item()
    syncs.close()
    assert syncs.result() == []


def test_a_rank_own_gradient_adds_up_over_passes():
    model = nn.Linear(3, 1, bias=False)
    probe = gradients.GradientProbe(model.parameters())
    for value in (1.0, 2.0):
        model(torch.full((1, 3), value)).sum().backward()
    model.weight.grad *= 0.5  # an exchange
    probe.look()
    probe.close()
    result = probe.result()
    own, final = result[0]
    assert own.tolist() == [3, 3, 3] and final.tolist() == [1.5, 1.5, 1.5] and probe.passes == 2
    assert not model.weight._backward_hooks


def test_files_that_are_written_are_noted_below_the_folder(tmp_path):
    written = writers.Writers(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / ".hidden").write_text("x")
    (tmp_path / "a.txt").read_text()
    torch.save({}, tmp_path / "b.pt")
    torch.save({}, tmp_path.parent / f"{tmp_path.name}-outside.pt")
    written.close()
    (tmp_path / "later").write_text("x")
    assert written.result()["names"] == ["a.txt", "b.pt"]


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


# --- a loader of a user's ------------------------------------------------------------------------------------------


class Noisy(torch.utils.data.Dataset):
    """Random numbers of all three generators beside a label."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int):
        return torch.rand(2), np.random.rand(), random.random(), index


def seeded(seed: int) -> None:
    """All three generators."""
    torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)


@pytest.mark.parametrize("workers", [0, 1])
def test_augmentation_is_told_by_the_seeds_it_would_get_and_uses_none_up(workers):
    loader = DataLoader(Noisy(), num_workers=workers)
    seen = []
    for seed in (1, 1, 2):
        seeded(seed)
        seen.append(augmentation(loader))
        after = torch.rand(1), np.random.rand(), random.random()
        seeded(seed)
        assert after == (torch.rand(1), np.random.rand(), random.random())
    streams, labels = zip(*seen, strict=True)
    assert streams[0] == streams[1] != streams[2] and len(set(labels)) == 1


def test_without_randomness_or_examples_by_number_there_is_no_stream():
    assert augmentation(DataLoader(TensorDataset(torch.arange(10))))[0] is None
    assert augmentation(DataLoader({"a": 1}, sampler=["a"])) == (None, None)


def part_of(loader, labels=None) -> dict | None:
    """One epoch of a loader, as its rank's part."""
    watch = LoaderWatch(loader, ranks=2)
    before = watch.recorded.sampler
    watch.epoch_ended(sum(1 for _ in loader), whole=True)
    watch.close()
    assert before in (loader.sampler, loader.batch_sampler)
    return watch.result(labels)


@pytest.mark.parametrize("workers", [0, 1])
def test_shares_of_a_subset_and_of_a_subset_sampler_are_whole_epochs(workers):
    whole = TensorDataset(torch.arange(100))
    train, _ = random_split(whole, [80, 20], generator=torch.Generator().manual_seed(1))
    of_one_subset = [
        part_of(DataLoader(train, 8, sampler=range(rank, 80, 2), num_workers=workers)) for rank in range(2)
    ]
    own_subsets = [
        part_of(DataLoader(Subset(whole, range(rank, 100, 2)), 10, num_workers=workers)) for rank in range(2)
    ]
    for parts, images in ((of_one_subset, 80), (own_subsets, 100)):
        assert data_of(parts)["epochs"] == [{"draws": images, "never": 0, "repeated": 0, "most": 1}]
    chosen = SubsetRandomSampler(range(50, 100))
    assert data_of([part_of(DataLoader(whole, 10, sampler=chosen))])["epochs"][0]["never"] == 0


def test_what_cannot_be_known_of_the_data_is_not_said():
    whole = TensorDataset(torch.arange(10))
    with_replacement = torch.utils.data.RandomSampler(whole, replacement=True)
    assert part_of(DataLoader(whole, 5, sampler=with_replacement)) is None
    assert data_of([part_of(DataLoader(whole, 5), labels) for labels in ("one set", "another")]) is None
    watch = LoaderWatch(DataLoader(whole, 5), ranks=1)
    watch.epoch_ended(sum(1 for _ in zip(range(1), watch.loader, strict=False)), whole=False)
    watch.close()
    assert "epochs" not in data_of([watch.result(None)])
