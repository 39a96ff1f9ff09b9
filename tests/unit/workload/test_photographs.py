"""bench/workload/images/photographs.py and what it stands on: sources, decoding, augmentation, held images."""

import io
import multiprocessing
import os
import pickle
import shutil
import sys
import tarfile
import threading
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.modes.base import Topology
from bench.workload import once
from bench.workload.images import photographs, sources
from bench.workload.images.augment import example_seeds
from bench.workload.images.decode import decode, decodes_on, on_device, quiet
from bench.workload.images.photographs import ImageSet
from bench.workload.images.sources import FolderSource, TarSource
from bench.workload.loader import SlowStorage, plain_errors, training_batches
from tests.runs import refuses

# Three loader workers on a machine of two cores are meant.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

CLASSES = ("ant", "bee", "cat")


def picture(number: int, width: int = 40, height: int = 30) -> Image.Image:
    """A different picture for each number: smooth, as photographs are."""
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "JPEG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture
def data(tmp_path) -> Path:
    """PATH with train (3 classes, 4 images each) and val (2 images each)."""
    for split, each, first in (("train", 4, 0), ("val", 2, 1000)):
        for c, name in enumerate(CLASSES):
            (folder := tmp_path / "data" / split / name).mkdir(parents=True)
            for i in range(each):
                image = picture(first + 100 * c + i, 40 + 3 * i, 30 + 2 * c)
                (folder / f"{i}.jpg").write_bytes(encoded(image))
    return tmp_path / "data"


def packed(data: Path, nested: bool = False) -> Path:
    """The same as PATH/train.tar and PATH/val.tar in a folder beside it; nested: a tar of one tar a class."""
    out = data.parent / "tars"
    out.mkdir()
    for split in ("train", "val"):
        with tarfile.open(out / f"{split}.tar", "w") as outer:
            for folder in sorted((data / split).iterdir()):
                inner = data.parent / f"{folder.name}.tar"
                if nested:
                    with tarfile.open(inner, "w") as tar:
                        tar.add(folder, "")
                outer.add(inner if nested else folder, inner.name if nested else folder.name)
    return out


def batch(dataset, *draws: int):
    return dataset[np.array(draws, dtype=np.int64)]


def everything(dataset, workers: int = 0, size: int = 5, epoch: int = 0) -> torch.Tensor:
    """All images of an epoch, through a DataLoader as the trainer uses it."""
    draws = epoch * len(dataset) + np.arange(len(dataset))
    sampler = [draws[i : i + size] for i in range(0, len(draws), size)]
    loader = DataLoader(dataset, batch_size=None, sampler=sampler, num_workers=workers)
    return torch.cat([pixels for pixels, _, _ in loader])


def test_a_folder_gives_its_images_with_the_labels_of_their_folders(data):
    """Held-out images count the training classes, also where a class has none of them."""
    (data / "train" / "ant" / ".hidden.jpg").write_bytes(b"x")
    (data / "train" / "ant" / "notes.txt").write_text("x")
    (data / "train" / ".cache").mkdir()
    dataset = ImageSet(FolderSource(data, train=True), 16, train=True)
    assert (dataset.classes, dataset.num_classes, len(dataset)) == (list(CLASSES), 3, 12)
    assert [dataset.source.name(i) for i in (0, 5, 11)] == ["train/ant/0.jpg", "train/bee/1.jpg", "train/cat/3.jpg"]
    pixels, labels, skipped = batch(dataset, 11, 0, 5)
    assert (pixels.shape, pixels.dtype, pixels.is_contiguous()) == ((3, 3, 16, 16), torch.uint8, True)
    assert (labels.tolist(), labels.dtype, skipped) == ([2, 0, 1], torch.int64, [])
    (data / "val").rename(data / "eval")
    shutil.rmtree(data / "eval" / "ant")
    source = FolderSource(data, train=False)
    assert (source.classes, source.labels.tolist()) == (list(CLASSES), [1, 1, 2, 2])


def flat(data: Path, classes=CLASSES) -> dict[str, str]:
    """val as ImageNet has it: no class folders, the classes in a list, and the classes turned round, so that names do
    not tell them. Returns name -> class."""
    found = {}
    for number, file in enumerate(sorted((data / "val").rglob("*.jpg"))):
        file.rename(data / "val" / f"v{number}.jpg")
        found[f"v{number}.jpg"] = classes[-1 - CLASSES.index(file.parent.name)]
    for name in CLASSES:
        (data / "val" / name).rmdir()
    (data / "val_labels.csv").write_text("".join(f"{name},{label}\n" for name, label in found.items()))
    return found


@pytest.mark.parametrize("inside", [None, "", "ILSVRC2012_img_val/"])
def test_a_flat_val_has_its_classes_in_a_labels_file(data, tmp_path, inside):
    """In a folder, in a tar, in a folder of a tar."""
    found, place = flat(data), data
    if inside is not None:
        place = packed(data)
        with tarfile.open(place / "val.tar", "w") as tar:
            for file in sorted((data / "val").iterdir(), reverse=True):
                tar.add(file, f"{inside}{file.name}")
        (data / "val_labels.csv").rename(place / "val_labels.csv")
    kind = FolderSource if inside is None else TarSource
    source = kind(place, train=False)
    names = [Path(source.name(i)).name for i in range(6)]
    assert sorted(names) == sorted(found) and source.classes == list(CLASSES) and source.labels.dtype == np.int64
    assert [CLASSES[label] for label in source.labels] == [found[name] for name in names]
    assert source.read(0) == (data / "val" / names[0]).read_bytes()
    (place / "val_labels.csv").rename(tmp_path / "elsewhere.csv")
    assert np.array_equal(kind(place, train=False, val_labels=tmp_path / "elsewhere.csv").labels, source.labels)


WRONG_FOLDERS = {  # what spoils it: (how, the set that is asked for, what the error names)
    "no train": (lambda data: (data / "train").rename(data / "training"), True, ["/train"]),
    "no val": (lambda data: (data / "val").rename(data / "test"), False, ["val", "eval"]),
    "no classes": (lambda data: [p.rename(data / p.name) for p in (data / "train").iterdir()], True, ["/train"]),
    "an empty class": (lambda data: (data / "train" / "bat").mkdir(), True, ["train/bat"]),
    "other types": (lambda data: [p.rename(p.with_suffix(".gz")) for p in data.rglob("*.jpg")], True, [".jpg"]),
    "another class": (lambda data: (data / "val" / "ant").rename(data / "val" / "dog"), False, ["dog"]),
    "no labels": (lambda data: (flat(data), (data / "val_labels.csv").unlink()), False, ["VAL_LABELS"]),
    "another label": (lambda data: flat(data, ("dog", *CLASSES[1:])), False, ["val_labels.csv", "dog"]),
}


@pytest.mark.parametrize("name", WRONG_FOLDERS)
def test_a_folder_that_is_wrong_is_one_line(data, name):
    spoil, train, values = WRONG_FOLDERS[name]
    spoil(data)
    with refuses(*values):
        FolderSource(data, train)


@pytest.mark.parametrize("nested", [False, True])
def test_a_tar_holds_what_the_folder_held(data, nested):
    """But for hidden files."""

    def contents(source):
        return sorted((source.read(i), int(source.labels[i])) for i in range(len(source.labels)))

    tars = packed(data, nested)
    with tarfile.open(tars / "val.tar", "a") as tar:
        tar.add(data / "train" / "ant" / "0.jpg", "__MACOSX/._0.jpg")
    for train in (True, False):
        folder, tar = FolderSource(data, train), TarSource(tars, train)
        assert tar.classes == folder.classes and contents(tar) == contents(folder)


def read_until(source, moment: float) -> None:
    """What another process does: it reads here and there until ``moment`` of the monotonic clock."""
    while time.monotonic() < moment:
        for index in (1, 7, 9):
            source.read(index)


def test_processes_that_read_one_tar_at_once_do_not_disturb_each_other(data):
    """As loader workers, which inherit what the parent has opened. Through timm's open files, some of the reads here
    are wrong."""
    source = TarSource(packed(data, nested=True), train=True)
    expected = [source.read(index) for index in range(12)]
    moment = time.monotonic() + 0.4
    fork = multiprocessing.get_context("fork")
    others = [fork.Process(target=read_until, args=(source, moment)) for _ in range(2)]
    for process in others:
        process.start()
    wrong = 0
    while time.monotonic() < moment:
        wrong += sum(source.read(index) != expected[index] for index in range(12))
    for process in others:
        process.join(30)
    assert wrong == 0 and [process.exitcode for process in others] == [0, 0]


def test_a_tars_index_is_kept_until_the_tar_changes(data, monkeypatch):
    tars = packed(data)
    cache = data.parent / "cache"
    first = TarSource(tars, train=True, cache=cache)
    sources.load_index.cache_clear()  # as in another process
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "timm.data.readers.reader_image_in_tar", None)
        again = TarSource(tars, train=True, cache=cache)
    assert [again.read(i) for i in range(12)] == [first.read(i) for i in range(12)]
    with tarfile.open(tars / "train.tar", "a") as tar:
        tar.add(data / "train" / "ant" / "0.jpg", "ant/new.jpg")
    assert len(TarSource(tars, train=True, cache=cache).labels) == 13


def cut_in_the_last_image(tar: Path) -> None:
    with tarfile.open(tar) as opened:
        last = opened.getmembers()[-1].offset_data
    os.truncate(tar, last + 10)


def hold(tar: Path, file, name: str, mode: str) -> None:
    with tarfile.open(tar, mode) as opened:
        opened.add(file, name)


WRONG_TARS = {
    "half": lambda tar: os.truncate(tar, tar.stat().st_size // 2),
    "cut in the last image": cut_in_the_last_image,
    "no tar": lambda tar: tar.write_bytes(b"no tar at all" * 1000),
    "no images": lambda tar: hold(tar, __file__, "ant/a.py", "w"),
    "an image of no class": lambda tar: hold(tar, next(tar.parent.parent.rglob("*.jpg")), "0.jpg", "a"),
    "not there": Path.unlink,
}


@pytest.mark.parametrize("name", WRONG_TARS)
def test_a_tar_that_is_wrong_is_one_line_that_names_it(data, name):
    tars = packed(data)
    WRONG_TARS[name](tars / "train.tar")
    with refuses("train.tar"):
        TarSource(tars, train=True)


def test_a_tar_with_another_class_or_cut_short_later_is_one_line(data):
    (data / "val" / "ant").rename(data / "val" / "dog")
    tars = packed(data)
    with refuses("val.tar", "dog", "train.tar"):
        TarSource(tars, train=False)
    source = TarSource(tars, train=True)
    os.truncate(source.tar, 600)
    with refuses("train.tar/cat/3.jpg", "SKIP_BAD=1"):
        batch(ImageSet(source, 8, train=True), 11)


def test_every_kind_of_image_is_decoded_as_pil_does():
    rgb, grey = picture(1), picture(2).convert("L")
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn me by 90 degrees"
    transparent, grey_alpha = rgb.copy(), grey.copy()
    transparent.putalpha(grey)
    grey_alpha.putalpha(rgb.convert("L"))
    for kind, data in {
        "jpeg": encoded(rgb),
        "progressive": encoded(rgb, progressive=True),
        "grey jpeg": encoded(grey),
        "cmyk": encoded(rgb.convert("CMYK")),
        "exif": encoded(rgb, exif=exif),
        "rgba": encoded(transparent, "PNG"),
        "grey alpha": encoded(grey_alpha, "PNG"),
        "palette with transparency": encoded(rgb.convert("P"), "PNG", transparency=3),
        "one bit": encoded(rgb.convert("1"), "PNG"),
        "tiff": encoded(rgb, "TIFF", compression="tiff_lzw"),
        "webp": encoded(rgb, "WEBP", lossless=True),
        "ppm": encoded(rgb, "PPM"),
    }.items():
        with quiet():
            image = decode(data).permute(1, 2, 0)
        assert (image.dtype, image.shape, image.is_contiguous()) == (torch.uint8, (30, 40, 3), True), kind
        assert np.array_equal(image.numpy(), np.array(Image.open(io.BytesIO(data)).convert("RGB"))), kind
    grey = np.arange(0, 65536, 64, dtype=np.uint16).reshape(32, 32)  # of sixteen bits the upper eight are taken
    with quiet():
        image = decode(encoded(Image.fromarray(grey), "PNG"))
    assert np.array_equal(image.numpy(), np.broadcast_to(grey >> 8, (3, 32, 32)))


def test_an_unreadable_image_is_a_users_error_that_names_it(data):
    """Empty, truncated, a text, vanished."""
    for train in (True, False):
        file = data / ("train" if train else "val") / "bee" / "1.jpg"
        dataset = ImageSet(FolderSource(data, train), 8, train)
        for content in (b"", encoded(picture(1))[:-200], encoded(picture(1), "PNG")[:-200], b"<html>" * 30, None):
            file.unlink() if content is None else file.write_bytes(content)
            with refuses(file, "SKIP_BAD=1"):
                everything(dataset)


def test_training_takes_the_next_readable_image_and_validation_leaves_one_out(data):
    for name in ("train/bee/3.jpg", "train/cat/0.jpg", "val/bee/0.jpg"):
        (data / name).write_bytes(b"")
    dataset = ImageSet(FolderSource(data, True), 8, train=True, skip_bad=True)
    pixels, labels, skipped = batch(dataset, 6, 7, 9)
    assert (len(pixels), labels.tolist(), skipped) == (3, [1, 2, 2], ["train/bee/3.jpg", "train/cat/0.jpg"])
    taken = ImageSet(dataset.source, 8, train=True)  # the images that took the places keep their own
    assert torch.equal(pixels[[0, 2]], batch(taken, 6, 9)[0]) and not torch.equal(pixels[1], pixels[2])
    held_out = ImageSet(FolderSource(data, False), 8, train=False, skip_bad=True)
    for draws, expected in (((1, 2, 3), [0, 1]), ((2,), [])):
        pixels, labels, skipped = batch(held_out, *draws)
        assert (tuple(pixels.shape), labels.tolist()) == ((len(expected), 3, 8, 8), expected)
        assert skipped == ["val/bee/0.jpg"]
    for file in (data / "train").glob("*/*.jpg"):
        file.write_bytes(b"")
    with refuses("train"):  # the search ends
        batch(dataset, 0)


def test_training_is_the_standard_augmentation_and_validation_takes_the_middle(data):
    dataset = ImageSet(FolderSource(data, True), 16, train=True, seed=3)
    standard = v2.Compose([v2.RandomResizedCrop(16, antialias=True), v2.RandomHorizontalFlip()])
    draws = np.arange(48)
    expected = []
    with quiet(), torch.random.fork_rng():
        for draw, seed in zip(draws, example_seeds(3, draws), strict=True):
            image = decode(dataset.source.read(draw % 12))
            torch.manual_seed(int(seed))
            expected.append(standard(image))
    assert torch.equal(dataset[draws][0], torch.stack(expected))
    middle = v2.Compose([v2.Resize(16, antialias=True), v2.CenterCrop(14)])
    for train in (True, False):
        dataset = ImageSet(FolderSource(data, train), 14, train, augment=False)
        with quiet():
            expected = torch.stack([middle(decode(dataset.source.read(i))) for i in range(len(dataset))])
        assert torch.equal(everything(dataset), expected) and torch.equal(everything(dataset, epoch=2), expected)


@pytest.mark.parametrize(("workers", "size"), [(0, 3), (3, 2)])
def test_an_example_is_the_same_whoever_makes_it(data, workers, size):
    """And torch's random numbers are left alone."""
    dataset = ImageSet(FolderSource(data, True), 12, train=True, seed=1)
    state = torch.get_rng_state()
    alone = torch.cat([batch(dataset, 24 + i)[0] for i in range(12)])
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(everything(dataset, workers, size, epoch=2), alone)


@pytest.mark.parametrize("seed", [0, 2**31, -1, 2**40])
def test_no_two_draws_share_a_seed(seed, tmp_path):
    """So examples differ by epoch, image and seed, also of one picture that is there twice."""
    draws = np.concatenate([np.arange(100_000), 2**32 - 1 - np.arange(100_000)])
    seeds = example_seeds(seed, draws)
    assert len(np.unique(seeds)) == len(draws)
    bits = (seeds[:, None] >> np.arange(32, dtype=np.uint32) & 1).mean(0)
    assert np.abs(bits - 0.5).max() < 0.006  # 5 deviations
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "0.png").write_bytes(encoded(picture(5), "PNG"))
    pixels = [ImageSet(FolderSource(tmp_path, True), 8, True, seed=each)[np.arange(20)][0] for each in (seed, seed + 1)]
    assert len({image.numpy().tobytes() for image in torch.cat(pixels)}) == 40


@pytest.mark.parametrize("train", [True, False])
def test_held_images_make_the_same_batches(data, tmp_path, train):
    """Also in a spawned worker, which maps them itself. Changed files are decoded again. Their size is predicted."""
    source = FolderSource(data, train)
    plain, kept = (ImageSet(source, 16, train, seed=2, hold=hold) for hold in (None, tmp_path / "cache"))
    expected = [everything(plain, epoch=epoch) for epoch in (0, 1)]
    gib = photographs.hold_size_gib(source)
    sizes = [Image.open(io.BytesIO(source.read(i))).size for i in range(len(source.labels))]
    assert gib == pytest.approx(sum(3 * width * height for width, height in sizes) / 2**30)
    file = next(iter(sorted((data / ("train" if train else "val") / "ant").iterdir())))
    file.write_bytes(encoded(picture(77)))  # it is not read again
    for workers in (0, 2):
        assert all(torch.equal(everything(kept, workers, epoch=e), expected[e]) for e in (0, 1))
    sent = pickle.dumps(kept)
    assert len(sent) < 10_000 < kept.held.path.stat().st_size
    assert torch.equal(everything(pickle.loads(sent)), expected[0])
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1_000_000))
    anew = everything(ImageSet(FolderSource(data, train), 16, train, seed=2, hold=tmp_path / "cache"))
    assert not torch.equal(anew[0], expected[0][0]) and torch.equal(anew[1:], expected[0][1:])


def test_one_process_makes_what_the_others_wait_for(tmp_path):
    """Not forever; what a killed one has left is written over."""
    path, lock = tmp_path / "thing", tmp_path / "lock"
    (tmp_path / "thing.part").write_text("half")

    def fail(part):
        part.write_text("ha")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        once.made_once(path, fail)
    assert not path.exists()
    assert once.made_once(path, lambda part: part.write_text("whole")).read_text() == "whole"
    assert once.made_once(path, fail).read_text() == "whole"

    fork, (inside, leave) = multiprocessing.get_context("fork"), (multiprocessing.Event() for _ in range(2))
    other = fork.Process(target=hold_a_lock, args=(lock, inside, leave))
    other.start()
    assert inside.wait(30)
    with refuses(lock), once.locked(lock, wait_s=0.1):
        pass
    threading.Timer(0.2, leave.set).start()
    start = time.monotonic()
    with once.locked(lock, wait_s=30):
        assert time.monotonic() - start > 0.1
    other.join(30)


def hold_a_lock(lock: Path, inside, leave) -> None:
    with once.locked(lock):
        inside.set()
        leave.wait(30)


def test_an_unreadable_image_is_not_held(data, tmp_path):
    (data / "train" / "bee" / "1.jpg").write_bytes(b"")
    source, cache = FolderSource(data, True), tmp_path / "cache"
    with refuses("bee/1.jpg", "SKIP_BAD=1"):
        ImageSet(source, 8, True, hold=cache)
    assert not list(cache.glob("*.held")) and not list(cache.glob("*.part"))
    kept, plain = (ImageSet(source, 8, True, skip_bad=True, hold=hold) for hold in (cache, None))
    draws = np.arange(12)
    (a, labels, skipped), (b, *same) = kept[draws], plain[draws]
    assert torch.equal(a, b) and torch.equal(labels, same[0]) and skipped == same[1] == ["train/bee/1.jpg"]
    with refuses("SKIP_BAD=1"):
        ImageSet(source, 8, True, hold=cache)[draws]  # another run, from the file that is there


CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def images_of(folder, finish_on, train: bool = True, workers: int = 0, slow: bool = False):
    """The first six batches of five, through the loader; finish_on: a device, or None for the present road."""
    dataset = ImageSet(FolderSource(folder, train), 16, train, seed=3, finish_on=finish_on)
    config = RunConfig(mode="single", per_device_batch=5, workers=workers, data=f"imagefolder:{folder}")
    dataset = SlowStorage(dataset, 0.1) if slow else dataset
    batches = training_batches(resolve(config, "cpu", 2), Topology(0, 0, 1, 1, CPU), dataset, 6)
    return list(plain_errors(iter(batches)))


@pytest.fixture
def of_all_kinds(data):
    """JPEGs, and others: one begins, as pixels, with the bytes by which a JPEG is known."""
    for name in ("bee", "ant"):
        pixels = np.full((20, 30, 3), (0xFF, 0xD8, 0xFF), dtype=np.uint8)
        Image.fromarray(pixels).save(data / "train" / name / "x.png")
        picture(5).save(data / "train" / name / "y.bmp")
    return data


@pytest.mark.parametrize(("train", "workers", "slow"), [(True, 0, False), (False, 0, False), (True, 2, True)])
def test_the_images_are_those_of_the_other_road(of_all_kinds, train, workers, slow):
    """With one decoder for both: files, order, parts, mirrors and labels are bit-identical, with each reader."""
    ours, theirs = (images_of(of_all_kinds, finish_on, train, workers, slow) for finish_on in (CPU, None))
    assert len(ours) == len(theirs) == 6
    for (images, labels, names), (images_too, labels_too, names_too) in zip(ours, theirs, strict=True):
        assert images.dtype == torch.uint8 and torch.equal(images, images_too)
        assert torch.equal(labels, labels_too) and names == names_too == []


def test_all_jpegs_of_a_batch_go_to_the_gpu_in_one_call(monkeypatch):
    """A stand-in for torchvision, which was read: a list of [bytes] on the CPU, the mode, and the device by name."""
    calls = []

    def decode_jpeg(files, mode, device):
        calls.append((len(files), mode, str(device), {file.device.type for file in files}))
        return [torch.zeros(3, 4, 5, dtype=torch.uint8) for _ in files]

    monkeypatch.setattr(torchvision.io, "decode_jpeg", decode_jpeg)
    images = on_device([torch.zeros(9, dtype=torch.uint8)] * 3, [(4, 5, True)] * 3, CUDA)
    assert calls == [(3, "RGB", "cuda:0", {"cpu"})] and [tuple(image.shape) for image in images] == [(3, 4, 5)] * 3


def test_a_jpeg_that_cannot_be_read_is_named(of_all_kinds):
    """The decoder of a whole batch does not say which one it was."""
    bad = of_all_kinds / "train" / "ant" / "0.jpg"
    bad.write_bytes(bad.read_bytes()[:-400])
    for workers in (0, 1):
        with refuses("ant/0.jpg"):
            images_of(of_all_kinds, CPU, workers=workers)


def test_a_jpeg_that_the_gpu_cannot_decode_is_decoded_on_the_cpu(of_all_kinds, monkeypatch):
    expected = images_of(of_all_kinds, None)
    monkeypatch.setattr(torchvision.io, "decode_jpeg", mock.Mock(side_effect=RuntimeError("nvjpegDecode failed: 2")))
    found = images_of(of_all_kinds, CPU)
    assert all(torch.equal(ours[0], theirs[0]) for ours, theirs in zip(found, expected, strict=True))


no_nvjpeg = mock.Mock(side_effect=RuntimeError("decode_jpegs_cuda: torchvision not compiled with nvJPEG\nmore"))


def nvjpeg(files, mode, device):
    return [torch.zeros(3, 16, 16, dtype=torch.uint8)] * len(files)


@pytest.mark.parametrize(
    ("decode", "stand_in", "device", "options", "expected"),
    [
        ("cpu", nvjpeg, CUDA, {}, False),
        ("auto", nvjpeg, CUDA, {}, True),
        ("auto", nvjpeg, CUDA, {"skip_bad": True}, False),
        ("auto", nvjpeg, CUDA, {"in_memory": True}, False),
        ("auto", nvjpeg, CPU, {}, False),
        ("auto", no_nvjpeg, CUDA, {}, False),
        ("cuda", nvjpeg, CUDA, {}, True),
    ],
)
def test_where_it_works_is_found_by_trying(monkeypatch, decode, stand_in, device, options, expected):
    monkeypatch.setattr(torchvision.io, "decode_jpeg", stand_in)
    config = RunConfig(data="imagefolder:/x", decode=decode, **options)
    assert decodes_on(device, config) is expected


def test_what_does_not_go_with_it_is_refused(monkeypatch):
    for given, values in (
        ({"data": "digits"}, ("DECODE", "DATA=digits")),
        ({"data": "tar:/x", "skip_bad": True}, ("DECODE", "SKIP_BAD")),
        ({"data": "tar:/x", "in_memory": True}, ("DECODE", "CACHE_IMAGES")),
    ):
        with refuses(*values):
            RunConfig(decode="cuda", **given)
    config = RunConfig(decode="cuda", data="tar:/x")
    with refuses("DECODE=cuda"):
        resolve(config, "cpu", 2)
    assert resolve(RunConfig(decode="auto", data="tar:/x"), "cpu", 2).decode == "auto"
    monkeypatch.setattr(torchvision.io, "decode_jpeg", no_nvjpeg)
    with refuses("DECODE=cuda", "DECODE=cpu"):
        decodes_on(CUDA, config)
