"""bench/workload/images/small_sets.py: FashionMNIST and CIFAR-10 from small files in their true formats.

The checksums of the real files cannot fit small ones, so the lists of them, public attributes of torchvision's classes,
are replaced.
"""

import functools
import gzip
import hashlib
import http.server
import multiprocessing
import pickle
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from torchvision.transforms import v2

from bench.workload.images.augment import crop_and_flip, example_seeds
from bench.workload.images.small_sets import CIFAR10, FASHION_MNIST, SmallSet
from tests.runs import refuses

N_TRAIN, N_TEST = 20, 10
RAW = Path("FashionMNIST", "raw")
FashionMnist, Cifar10 = functools.partial(SmallSet, FASHION_MNIST), functools.partial(SmallSet, CIFAR10)


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def fashion_arrays(train: bool) -> tuple[np.ndarray, np.ndarray]:
    rng, n = np.random.default_rng(train), N_TRAIN if train else N_TEST
    return rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), np.arange(n, dtype=np.uint8) % 10


def fashion_files() -> dict[str, bytes]:
    """FashionMNIST's four files, not compressed: two zeros, type 8 (bytes), dimensions, sizes, bytes."""
    files = {}
    for split, train in (("train", True), ("t10k", False)):
        images, labels = fashion_arrays(train)
        for name, array in ((f"{split}-images-idx3-ubyte", images), (f"{split}-labels-idx1-ubyte", labels)):
            sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
            files[name] = bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()
    return files


def write_all(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


@pytest.fixture
def fashion(tmp_path) -> Path:
    write_all(tmp_path / RAW, fashion_files())
    return tmp_path


@pytest.fixture
def archives(monkeypatch) -> dict[str, bytes]:
    """FashionMNIST's files as they are downloaded; torchvision takes their checksums for the real ones."""
    files = {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in fashion_files().items()}
    monkeypatch.setattr(torchvision.datasets.FashionMNIST, "resources", [(n, md5(d)) for n, d in files.items()])
    monkeypatch.setattr(torchvision.datasets.FashionMNIST, "mirrors", ["http://127.0.0.1:9/"])  # nobody answers
    return files


def cifar_arrays(train: bool) -> tuple[np.ndarray, list[int]]:
    rng, n = np.random.default_rng(10 + train), N_TRAIN if train else N_TEST
    return rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8), [i % 10 for i in range(n)]


def cifar_files() -> dict[str, bytes]:
    files = {}
    (images, labels), (test_images, test_labels) = cifar_arrays(True), cifar_arrays(False)
    for b in range(5):
        part = slice(4 * b, 4 * b + 4)
        files[f"data_batch_{b + 1}"] = {"data": images[part].reshape(4, -1), "labels": labels[part]}
    files["test_batch"] = {"data": test_images.reshape(N_TEST, -1), "labels": test_labels}
    files["batches.meta"] = {"label_names": [f"class{i}" for i in range(10)]}
    return {name: pickle.dumps(content, protocol=2) for name, content in files.items()}


@pytest.fixture
def cifar(tmp_path, monkeypatch) -> Path:
    files = cifar_files()
    sums = {name: md5(data) for name, data in files.items()}
    known = torchvision.datasets.CIFAR10
    monkeypatch.setattr(known, "train_list", [[f"data_batch_{b}", sums[f"data_batch_{b}"]] for b in range(1, 6)])
    monkeypatch.setattr(known, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(known, "meta", {**known.meta, "md5": sums["batches.meta"]})
    monkeypatch.setattr(known, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")
    write_all(tmp_path / "cifar-10-batches-py", files)
    return tmp_path


@pytest.mark.parametrize("train", [True, False])
def test_a_set_is_what_its_files_hold(fashion, cifar, train):
    """Grey images get three equal channels."""
    images, labels = fashion_arrays(train)
    check(FashionMnist(fashion, 28, train, augment=False), np.repeat(images[:, None], 3, axis=1), labels, "Ankle boot")
    check(Cifar10(cifar, 32, train, augment=False), *cifar_arrays(train), "class9")


def check(dataset, images, labels, last_class: str) -> None:
    draws = np.array([3, 0, 3, len(labels) - 1])
    pixels, got, skipped = dataset[draws]
    assert (len(dataset), dataset.num_classes, dataset.classes[9]) == (len(labels), 10, last_class)
    assert (pixels.dtype, pixels.is_contiguous(), got.dtype, skipped) == (torch.uint8, True, torch.int64, [])
    assert np.array_equal(pixels.numpy(), images[draws]) and got.tolist() == [labels[draw] for draw in draws]
    assert len(dataset.mean) == len(dataset.std) == 3


def test_other_sizes_are_resized(fashion, cifar):
    (fashion / ".download.lock").mkdir()  # nothing has to be written here
    for dataset in (FashionMnist(fashion, 16, False), Cifar10(cifar, 48, False)):
        pixels, _, _ = dataset[np.arange(4)]
        size = dataset.image_size
        expected = v2.functional.resize(dataset.images[:4], [size, size], antialias=True).expand(-1, 3, -1, -1)
        assert pixels.shape == (4, 3, size, size) and torch.equal(pixels, expected)


def test_training_takes_a_window_and_perhaps_mirrors_it():
    padding = 2
    image = torch.arange(1, 65, dtype=torch.uint8).reshape(1, 1, 8, 8)  # no pixel occurs twice, none is black
    padded = v2.functional.pad(image, [padding])
    places = [(top, left) for top in range(2 * padding + 1) for left in range(2 * padding + 1)]
    windows = [v2.functional.crop(padded, top, left, 8, 8) for top, left in places]
    windows += [v2.functional.horizontal_flip(window) for window in windows]
    numbers = {window.numpy().tobytes(): number for number, window in enumerate(windows)}
    draws = 400 * len(windows)
    made = crop_and_flip(image.expand(draws, -1, -1, -1), padding, example_seeds(5, np.arange(draws)))
    counts = np.bincount([numbers[one.numpy().tobytes()] for one in made], minlength=len(windows))
    assert abs(counts - 400).max() < 5 * 20  # every window as often: within five deviations


def test_an_example_is_the_same_in_any_batch_and_new_in_each_epoch(cifar):
    dataset = Cifar10(cifar, 32, True, seed=4)
    epochs = [dataset[epoch * N_TRAIN + np.arange(N_TRAIN)][0] for epoch in range(3)]
    again = torch.cat([dataset[np.array([N_TRAIN + i])][0] for i in range(N_TRAIN)])
    assert torch.equal(again, epochs[1])
    assert not torch.equal(epochs[0], epochs[1]) and not torch.equal(epochs[1], epochs[2])
    assert not torch.equal(Cifar10(cifar, 32, True, seed=5)[np.arange(N_TRAIN)][0], epochs[0])


def test_archives_downloaded_by_hand_are_taken(tmp_path, archives, cifar, monkeypatch):
    write_all(tmp_path / "hand" / RAW, archives)
    assert len(FashionMnist(tmp_path / "hand", 28, True)) == N_TRAIN
    archive = cifar / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(cifar / "cifar-10-batches-py", "cifar-10-batches-py")
    (cifar / "cifar-10-batches-py").rename(cifar / "away")
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "tgz_md5", md5(archive.read_bytes()))
    assert len(Cifar10(cifar, 32, False)) == N_TEST


def test_what_is_not_there_or_damaged_is_one_line_that_names_its_place(tmp_path, archives, fashion, cifar):
    none = tmp_path / "none"
    with refuses(none / RAW, *archives):
        FashionMnist(none, 28, True)
    (cifar / "cifar-10-batches-py" / "data_batch_3").write_bytes(b"damaged")
    for folder in (cifar, none):
        with refuses(folder, "cifar-10-python.tar.gz"):
            Cifar10(folder, 32, True)
    path = fashion / RAW / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-100])
    with refuses("FashionMNIST"):
        FashionMnist(fashion, 28, True)


def test_one_of_several_processes_downloads(tmp_path, archives, monkeypatch):
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path[1:])
            super().do_GET()

        def log_message(self, *words):
            pass

    def load() -> None:
        assert len(FashionMnist(tmp_path / "data", 28, True)) == N_TRAIN

    write_all(tmp_path / "mirror", archives)
    handler = functools.partial(Handler, directory=tmp_path / "mirror")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        mirror = f"http://127.0.0.1:{server.server_port}/"
        monkeypatch.setattr(torchvision.datasets.FashionMNIST, "mirrors", [mirror])
        processes = [multiprocessing.get_context("fork").Process(target=load) for _ in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        server.shutdown()
    assert [process.exitcode for process in processes] == [0] * 3
    assert {*asked} == {*archives} and len(asked) <= 2 * len(archives)  # torchvision asks for redirects first
