"""bench/workload/images/photographs.py and what it stands on: sources, decoding, augmentation, held images."""

import hashlib
import io
import multiprocessing
import os
import pickle
import sys
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from bench.errors import UserError
from bench.workload import once
from bench.workload.images import photographs, sources
from bench.workload.images.augment import example_seeds
from bench.workload.images.decode import Unreadable, decode, quiet
from bench.workload.images.photographs import ImageSet
from bench.workload.images.sources import FolderSource, TarSource

# Three loader workers on a machine of two cores are meant.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

CLASSES = ("ant", "bee", "cat")


def picture(number: int, width: int = 40, height: int = 30) -> Image.Image:
    """A picture of its own for each number: smooth, as photographs are."""
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "JPEG", **options) -> bytes:
    """The bytes of an image file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def fill(folder: Path, classes=CLASSES, each: int = 4, first: int = 0) -> Path:
    """Class folders with JPEGs of several sizes."""
    for c, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            data = encoded(picture(first + 100 * c + i, 40 + 3 * i, 30 + 2 * c))
            (folder / name / f"{i}.jpg").write_bytes(data)
    return folder


@pytest.fixture
def data(tmp_path) -> Path:
    """PATH with train (3 classes, 4 images each) and val (2 images each)."""
    fill(tmp_path / "data" / "train")
    fill(tmp_path / "data" / "val", each=2, first=1000)
    return tmp_path / "data"


def packed(data: Path, nested: bool = False) -> Path:
    """The same as PATH/train.tar and PATH/val.tar in a folder beside it; nested: a tar of one tar a class."""
    out = data.parent / ("nested" if nested else "tars")
    out.mkdir()
    for split in ("train", "val"):
        with tarfile.open(out / f"{split}.tar", "w") as outer:
            for folder in sorted((data / split).iterdir()):
                if nested:
                    inner = data.parent / f"{folder.name}.tar"
                    with tarfile.open(inner, "w") as tar:
                        for file in sorted(folder.iterdir()):
                            tar.add(file, file.name)
                    outer.add(inner, inner.name)
                else:
                    outer.add(folder, folder.name)  # a class folder, or an image of a flat val
    return out


def batch(dataset, *draws: int):
    """dataset[draws]."""
    return dataset[np.array(draws, dtype=np.int64)]


def everything(dataset, workers: int = 0, size: int = 5, epoch: int = 0) -> torch.Tensor:
    """All images of an epoch, through a DataLoader as the trainer uses it."""
    draws = epoch * len(dataset) + np.arange(len(dataset))
    sampler = [draws[i : i + size] for i in range(0, len(draws), size)]
    loader = DataLoader(dataset, batch_size=None, sampler=sampler, num_workers=workers)
    return torch.cat([pixels for pixels, _, _ in loader])


# Folders


def test_a_folder_gives_its_images_with_the_labels_of_their_folders(data):
    (data / "train" / "ant" / ".hidden.jpg").write_bytes(b"x")
    (data / "train" / "ant" / "notes.txt").write_text("x")
    (data / "train" / ".cache").mkdir()
    dataset = ImageSet(FolderSource(data, train=True), 16, train=True)
    assert (dataset.classes, dataset.num_classes, len(dataset)) == (list(CLASSES), 3, 12)
    assert [dataset.source.name(i) for i in (0, 5, 11)] == ["train/ant/0.jpg", "train/bee/1.jpg", "train/cat/3.jpg"]
    pixels, labels, skipped = batch(dataset, 11, 0, 5)
    assert (pixels.shape, pixels.dtype, pixels.is_contiguous()) == ((3, 3, 16, 16), torch.uint8, True)
    assert (labels.tolist(), labels.dtype, skipped) == ([2, 0, 1], torch.int64, [])


def test_held_out_images_count_the_training_classes(data):
    (data / "val").rename(data / "eval")
    for file in (data / "eval" / "ant").iterdir():
        file.unlink()
    (data / "eval" / "ant").rmdir()
    source = FolderSource(data, train=False)
    assert (source.classes, source.labels.tolist()) == (list(CLASSES), [1, 1, 2, 2])


def flat(data: Path, labels: str | None = "val_labels.csv") -> dict[str, str]:
    """val as ImageNet has it: no class folders, the classes in a list, and the classes turned round, so that names do
    not tell them. Returns name -> class."""
    found = {}
    for number, file in enumerate(sorted((data / "val").rglob("*.jpg"))):
        file.rename(data / "val" / f"v{number}.jpg")
        found[f"v{number}.jpg"] = CLASSES[-1 - CLASSES.index(file.parent.name)]
    for name in CLASSES:
        (data / "val" / name).rmdir()
    if labels:
        (data / labels).write_text("".join(f"{name},{label}\n" for name, label in found.items()))
    return found


def test_a_flat_val_has_its_classes_in_a_labels_file(data, tmp_path):
    found = flat(data)
    source = FolderSource(data, train=False)
    assert [source.name(i) for i in range(6)] == [f"val/v{i}.jpg" for i in range(6)]
    assert source.classes == list(CLASSES) and source.labels.dtype == np.int64
    assert [CLASSES[label] for label in source.labels] == [found[f"v{i}.jpg"] for i in range(6)]
    (data / "val_labels.csv").rename(tmp_path / "elsewhere.csv")
    assert np.array_equal(FolderSource(data, False, tmp_path / "elsewhere.csv").labels, source.labels)


@pytest.mark.parametrize("inside", ["", "./", "ILSVRC2012_img_val/"])
def test_a_flat_val_tar_has_them_there_as_well(data, inside):
    found, place = flat(data), packed(data)
    with tarfile.open(place / "val.tar", "w") as tar:
        for file in sorted((data / "val").iterdir(), reverse=True):
            tar.add(file, f"{inside}{file.name}")
    (data / "val_labels.csv").rename(place / "val_labels.csv")
    source = TarSource(place, train=False)
    names = [Path(source.name(i)).name for i in range(6)]
    assert sorted(names) == sorted(found) and [CLASSES[label] for label in source.labels] == [found[n] for n in names]
    assert source.read(0) == (data / "val" / names[0]).read_bytes()


@pytest.mark.parametrize("kind", [FolderSource, TarSource])
def test_a_flat_val_without_labels_is_one_line(data, kind):
    flat(data, labels=None)
    place = data
    if kind is TarSource:
        place = packed(data)
    with pytest.raises(UserError, match="outside of class folders: name their labels file, VAL_LABELS=FILE") as caught:
        kind(place, train=False)
    assert "\n" not in str(caught.value)


def test_a_label_that_is_no_training_class_is_one_line(data):
    flat(data)
    text = (data / "val_labels.csv").read_text()
    (data / "val_labels.csv").write_text(text.replace("ant", "dog"))
    with pytest.raises(UserError, match=r"val_labels.csv has the class dog, which .*train does not have"):
        FolderSource(data, train=False)


def no_folder(data):
    (data / "train").rename(data / "training")


def no_val(data):
    (data / "val").rename(data / "test")


def no_classes(data):
    for name in CLASSES:
        (data / "train" / name).rename(data / name)


def empty_class(data):
    (data / "train" / "bat").mkdir()


def unknown_types(data):
    for file in (data / "train").glob("*/*.jpg"):
        file.rename(file.with_suffix(".gz"))


def unknown_class(data):
    (data / "val" / "ant").rename(data / "val" / "dog")


@pytest.mark.parametrize(
    ("spoil", "train", "words"),
    [
        (no_folder, True, ["train", "No such file"]),
        (no_val, False, ["neither val nor eval"]),
        (no_classes, True, ["train", "no class folders"]),
        (empty_class, True, ["train/bat", "no image"]),
        (unknown_types, True, ["train", ".jpg", "no image of a type"]),
        (unknown_class, False, ["val", "dog", "does not have"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_folder_that_is_wrong_is_one_line(data, spoil, train, words):
    spoil(data)
    with pytest.raises(UserError) as caught:
        FolderSource(data, train)
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value)


# Tars


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("train", [True, False])
def test_a_tar_holds_what_the_folder_held(data, nested, train):
    folder, tar = FolderSource(data, train), TarSource(packed(data, nested), train)
    assert tar.classes == folder.classes

    def contents(source):
        found = [(hashlib.sha256(source.read(i)).digest(), int(source.labels[i])) for i in range(len(source.labels))]
        return sorted(found)

    assert contents(tar) == contents(folder)


class Checksums:
    """A source's bytes as numbers, read in loader workers."""

    def __init__(self, source):
        self.source = source

    def __getitem__(self, index: int) -> str:
        return hashlib.sha256(self.source.read(index)).hexdigest()


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("nested", [False, True])
def test_loader_workers_swap_no_samples_of_a_tar(data, nested, workers):
    source = TarSource(packed(data, nested), train=True)
    source.read(3)  # the trap: the parent has read before the workers start
    expected = [hashlib.sha256(source.read(i)).hexdigest() for i in range(12)]
    assert len(set(expected)) == 12
    loader = DataLoader(Checksums(source), batch_size=None, sampler=list(range(12)) * 5, num_workers=workers)
    assert list(loader) == expected * 5


def read_until(source, moment: float) -> None:
    """What another process does: it reads here and there until ``moment`` of the monotonic clock."""
    while time.monotonic() < moment:
        for index in (1, 7, 9):
            source.read(index)


@pytest.mark.parametrize("nested", [False, True])
def test_processes_that_read_one_tar_at_once_do_not_disturb_each_other(data, nested):
    """Through timm's open files, some of the reads here are wrong."""
    source = TarSource(packed(data, nested), train=True)
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


def test_hidden_files_of_a_tar_are_ignored(data):
    tars = packed(data)
    with tarfile.open(tars / "train.tar", "a") as tar:
        tar.add(data / "train" / "ant" / "0.jpg", "__MACOSX/._0.jpg")
    source = TarSource(tars, train=True)
    assert (source.classes, len(source.labels)) == (list(CLASSES), 12)


def cut(tar: Path):
    os.truncate(tar, tar.stat().st_size // 2)


def cut_in_the_last_image(tar: Path):
    with tarfile.open(tar) as opened:
        last = opened.getmembers()[-1]
    os.truncate(tar, last.offset_data + 10)


def no_tar(tar: Path):
    tar.write_bytes(b"no tar at all" * 1000)


def no_images(tar: Path):
    with tarfile.open(tar, "w") as opened:
        opened.add(__file__, "ant/a.py")


def no_class(tar: Path):
    with tarfile.open(tar, "a") as opened:
        opened.add(tar.parent.parent / "data" / "train" / "ant" / "0.jpg", "0.jpg")


@pytest.mark.parametrize("spoil", [cut, cut_in_the_last_image, no_tar, no_images, no_class, Path.unlink])
def test_a_tar_that_is_wrong_is_one_line_that_names_it(data, spoil):
    tars = packed(data)
    spoil(tars / "train.tar")
    with pytest.raises(UserError) as caught:
        TarSource(tars, train=True)
    assert "train.tar" in str(caught.value) and "\n" not in str(caught.value)


def test_a_class_of_val_tar_that_train_lacks_is_a_users_error(data):
    unknown_class(data)
    with pytest.raises(UserError, match=r"val\.tar.*dog.*train\.tar"):
        TarSource(packed(data), train=False)


def test_a_tar_cut_short_later_names_the_image(data):
    source = TarSource(packed(data), train=True)
    os.truncate(source.tar, 600)
    with pytest.raises(UserError, match=r"train\.tar/cat/3\.jpg .*SKIP_BAD=1"):
        batch(ImageSet(source, 8, train=True), 11)


def test_without_timm_a_tar_is_a_users_error(data, monkeypatch):
    tars = packed(data)
    monkeypatch.setitem(sys.modules, "timm.data.readers.reader_image_in_tar", None)
    with pytest.raises(UserError, match="pip install timm"):
        TarSource(tars, train=True)


# Decoding


def kinds_of_images() -> dict[str, bytes]:
    """One small file of every kind that occurs."""
    rgb, grey = picture(1), picture(2).convert("L")
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn me by 90 degrees"
    transparent, grey_alpha, palette = rgb.copy(), grey.copy(), rgb.convert("P")
    transparent.putalpha(grey)
    grey_alpha.putalpha(rgb.convert("L"))
    return {
        "jpeg": encoded(rgb),
        "progressive": encoded(rgb, progressive=True),
        "grey jpeg": encoded(grey),
        "cmyk": encoded(rgb.convert("CMYK")),
        "exif": encoded(rgb, exif=exif),
        "png": encoded(rgb, "PNG"),
        "rgba": encoded(transparent, "PNG"),
        "grey alpha": encoded(grey_alpha, "PNG"),
        "palette": encoded(palette, "PNG"),
        "palette with transparency": encoded(palette, "PNG", transparency=3),
        "one bit": encoded(rgb.convert("1"), "PNG"),
        "bmp": encoded(rgb, "BMP"),
        "tiff": encoded(rgb, "TIFF", compression="tiff_lzw"),
        "webp": encoded(rgb, "WEBP", lossless=True),
        "ppm": encoded(rgb, "PPM"),
    }


@pytest.mark.parametrize("kind", kinds_of_images())
def test_every_kind_of_image_is_decoded_as_pil_does(kind):
    data = kinds_of_images()[kind]
    expected = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
    with quiet():
        image = decode(data)
    assert image.dtype == torch.uint8 and image.shape == (3, 30, 40)
    assert np.array_equal(image.permute(1, 2, 0).numpy(), expected)
    assert image.permute(1, 2, 0).is_contiguous()


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_become_the_upper_eight(kind):
    grey = np.arange(0, 65536, 64, dtype=np.uint16).reshape(32, 32)
    with quiet():
        image = decode(encoded(Image.fromarray(grey), kind))
    assert np.array_equal(image.numpy(), np.broadcast_to(grey >> 8, (3, 32, 32)))


def test_decoding_does_without_torchvisions_decoders(monkeypatch):
    with quiet():
        expected = decode(encoded(picture(1)))
        monkeypatch.delattr("torchvision.io.decode_image")
        assert torch.equal(decode(encoded(picture(1))), expected)


BAD = {
    "empty": b"",
    "truncated jpeg": encoded(picture(1))[:-200],
    "truncated png": encoded(picture(1), "PNG")[:-200],
    "text": b"<html>not found</html>" * 9,
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_whole_image_says_why(kind):
    with quiet(), pytest.raises(Unreadable, match=r"\w"):
        decode(BAD[kind])


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("train", [True, False])
def test_an_unreadable_image_is_a_users_error_that_names_it(data, kind, train):
    file = data / ("train" if train else "val") / "bee" / "1.jpg"
    file.write_bytes(BAD[kind])
    dataset = ImageSet(FolderSource(data, train), 8, train)
    with pytest.raises(UserError) as caught:
        everything(dataset)
    said = str(caught.value)
    assert said.startswith(str(file)) and said.endswith("SKIP_BAD=1 leaves it out") and "\n" not in said


def test_training_takes_the_next_readable_image(data):
    for name in ("bee/3.jpg", "cat/0.jpg"):
        (data / "train" / name).write_bytes(b"")
    dataset = ImageSet(FolderSource(data, True), 8, train=True, skip_bad=True)
    pixels, labels, skipped = batch(dataset, 6, 7, 9)
    assert (len(pixels), labels.tolist(), skipped) == (3, [1, 2, 2], ["train/bee/3.jpg", "train/cat/0.jpg"])
    taken = ImageSet(dataset.source, 8, train=True)  # the images that took the places keep their own
    assert torch.equal(pixels[[0, 2]], batch(taken, 6, 9)[0]) and not torch.equal(pixels[1], pixels[2])


def test_validation_leaves_an_unreadable_image_out(data):
    (data / "val" / "bee" / "0.jpg").write_bytes(b"")
    dataset = ImageSet(FolderSource(data, False), 8, train=False, skip_bad=True)
    pixels, labels, skipped = batch(dataset, 1, 2, 3)
    assert (len(pixels), labels.tolist(), skipped) == (2, [0, 1], ["val/bee/0.jpg"])
    pixels, labels, skipped = batch(dataset, 2)
    assert (pixels.shape, labels.shape, skipped) == ((0, 3, 8, 8), (0,), ["val/bee/0.jpg"])


def test_the_search_for_a_readable_image_ends(data):
    for file in (data / "train").glob("*/*.jpg"):
        file.write_bytes(b"")
    with pytest.raises(UserError, match="in a row"):
        batch(ImageSet(FolderSource(data, True), 8, train=True, skip_bad=True), 0)


def test_a_file_that_vanished_is_a_users_error(data):
    dataset = ImageSet(FolderSource(data, True), 8, train=True)
    (data / "train" / "ant" / "0.jpg").unlink()
    with pytest.raises(UserError, match=r"ant/0\.jpg.*No such file"):
        batch(dataset, 0)


# Augmentation


def test_training_is_the_standard_augmentation(data):
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


@pytest.mark.parametrize("train", [True, False])
def test_validation_and_unaugmented_training_take_the_middle(data, train):
    dataset = ImageSet(FolderSource(data, train), 14, train, augment=False)
    standard = v2.Compose([v2.Resize(16, antialias=True), v2.CenterCrop(14)])
    with quiet():
        expected = torch.stack([standard(decode(dataset.source.read(i))) for i in range(len(dataset))])
    assert torch.equal(everything(dataset), expected)
    assert torch.equal(everything(dataset, epoch=2), expected)


@pytest.mark.parametrize(("workers", "size"), [(0, 3), (1, 5), (3, 2)])
def test_an_example_is_the_same_whoever_makes_it(data, workers, size):
    dataset = ImageSet(FolderSource(data, True), 12, train=True, seed=1)
    alone = torch.cat([batch(dataset, 24 + i)[0] for i in range(12)])
    assert torch.equal(everything(dataset, workers, size, epoch=2), alone)


def test_examples_differ_by_epoch_image_and_seed(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "0.png").write_bytes(encoded(picture(5), "PNG"))  # the same picture twice
    source = FolderSource(tmp_path, True)
    pixels = [ImageSet(source, 8, True, seed=seed)[np.arange(20)][0] for seed in (0, 1)]
    assert len({image.numpy().tobytes() for image in torch.cat(pixels)}) == 40


def test_no_two_draws_share_a_seed():
    draws = np.concatenate([np.arange(100_000), 2**32 - 1 - np.arange(100_000)])
    for seed in (0, 1, 2**31, -1, 2**40):
        seeds = example_seeds(seed, draws)
        assert len(np.unique(seeds)) == len(draws)
        bits = (seeds[:, None] >> np.arange(32, dtype=np.uint32) & 1).mean(0)
        assert np.abs(bits - 0.5).max() < 0.006  # 5 deviations


def test_torchs_random_numbers_are_left_alone(data):
    dataset = ImageSet(FolderSource(data, True), 8, train=True)
    torch.manual_seed(1)
    expected = torch.rand(4)
    torch.manual_seed(1)
    first = batch(dataset, 0, 1)[0]
    assert torch.equal(torch.rand(4), expected)
    assert torch.equal(batch(dataset, 0, 1)[0], first)


# The decoded cache


@pytest.mark.parametrize("train", [True, False])
def test_held_images_make_the_same_batches(data, tmp_path, train):
    source = FolderSource(data, train)
    plain, kept = (ImageSet(source, 16, train, seed=2, hold=hold) for hold in (None, tmp_path / "cache"))
    expected = [everything(plain, epoch=epoch) for epoch in (0, 1)]
    for file in data.glob("*/*/*.jpg"):
        file.unlink()  # they are not read again
    for workers in (0, 2):
        assert all(torch.equal(everything(kept, workers, epoch=e), expected[e]) for e in (0, 1))


def test_a_spawned_worker_maps_the_held_images_itself(data, tmp_path):
    dataset = ImageSet(FolderSource(data, True), 8, True, hold=tmp_path / "cache")
    sent = pickle.dumps(dataset)
    assert len(sent) < 10_000 < dataset.held.path.stat().st_size
    assert torch.equal(everything(pickle.loads(sent)), everything(dataset))


def test_changed_files_are_decoded_anew(data, tmp_path):
    cache = tmp_path / "cache"
    before = everything(ImageSet(FolderSource(data, True), 8, True, hold=cache))
    file = data / "train" / "ant" / "0.jpg"
    stat = file.stat()
    file.write_bytes(encoded(picture(77)))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
    after = everything(ImageSet(FolderSource(data, True), 8, True, hold=cache))
    assert not torch.equal(before[0], after[0]) and torch.equal(before[1:], after[1:])


def hold_in_process(data, cache, out):
    """What one process of several does."""
    pixels = everything(ImageSet(FolderSource(data, True), 8, True, hold=cache))
    Path(out).write_text(hashlib.sha256(pixels.numpy().tobytes()).hexdigest())


def test_one_of_several_processes_decodes(data, tmp_path):
    cache = tmp_path / "cache"
    context = multiprocessing.get_context("fork")
    outs = [tmp_path / f"out{i}" for i in range(3)]
    processes = [context.Process(target=hold_in_process, args=(data, cache, out)) for out in outs]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len({out.read_text() for out in outs}) == 1
    assert sorted(path.suffix for path in cache.iterdir()) == [".held", ".lock"]


def test_an_unreadable_image_is_not_held(data, tmp_path):
    (data / "train" / "bee" / "1.jpg").write_bytes(b"")
    source, cache = FolderSource(data, True), tmp_path / "cache"
    with pytest.raises(UserError, match=r"bee/1\.jpg.*SKIP_BAD=1"):
        ImageSet(source, 8, True, hold=cache)
    assert not list(cache.glob("*.held")) and not list(cache.glob("*.part"))
    kept, plain = (ImageSet(source, 8, True, skip_bad=True, hold=hold) for hold in (cache, None))
    draws = np.arange(12)
    (a, labels, skipped), (b, *same) = kept[draws], plain[draws]
    assert torch.equal(a, b) and torch.equal(labels, same[0]) and skipped == same[1] == ["train/bee/1.jpg"]
    with pytest.raises(UserError, match="SKIP_BAD=1"):
        ImageSet(source, 8, True, hold=cache)[draws]  # another run, from the file that is there


def test_the_estimate_of_the_held_size_is_near(data, tmp_path):
    source = FolderSource(data, True)
    sizes = [Image.open(io.BytesIO(source.read(i))).size for i in range(12)]
    pixels = sum(3 * width * height for width, height in sizes)
    assert photographs.hold_size_gib(source) == pytest.approx(pixels / 2**30)
    (data / "train" / "ant" / "0.jpg").write_bytes(b"")
    assert photographs.hold_size_gib(source) == pytest.approx(pixels / 2**30, rel=0.1)


def test_a_cache_folder_that_cannot_be_written_to_is_a_users_error(data, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file.*cannot be written to"):
        ImageSet(FolderSource(data, True), 8, True, hold=tmp_path / "file")


# Locks


def test_a_lock_is_waited_for_and_the_wait_ends(tmp_path):
    path, inside, leave = tmp_path / "lock", threading.Event(), threading.Event()

    def holder():
        with once.locked(path):
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=holder)
    thread.start()
    inside.wait(30)
    with pytest.raises(UserError, match="held by another process"), once.locked(path, wait_s=0.1):
        pass
    threading.Timer(0.2, leave.set).start()
    start = time.monotonic()
    with once.locked(path, wait_s=30):
        assert time.monotonic() - start > 0.1
    thread.join()


def test_what_a_killed_maker_left_is_written_over(tmp_path):
    path = tmp_path / "thing"
    (tmp_path / "thing.part").write_text("half")

    def fail(part):
        part.write_text("ha")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        once.made_once(path, fail)
    assert not path.exists()
    assert once.made_once(path, lambda part: part.write_text("whole")).read_text() == "whole"
    assert once.made_once(path, fail).read_text() == "whole"
