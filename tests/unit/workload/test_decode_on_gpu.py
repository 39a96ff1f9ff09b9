"""DECODE=cuda, as far as a test can go without a GPU: the whole road on a CPU device, and the call by a stand-in."""

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.modes.base import Topology
from bench.workload.images.decode import decodes_on, on_device
from bench.workload.images.photographs import ImageSet
from bench.workload.images.sources import FolderSource
from bench.workload.loader import SlowStorage, plain_errors, training_batches
from tests.runs import refuses
from tests.unit.workload.test_photographs import data, picture  # noqa: F401  (data is a fixture)

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def images_of(folder, finish_on, train: bool = True, workers: int = 0, slow: bool = False, steps: int = 6):
    """The first steps' batches of five, through the loader; finish_on: a device, or None for the present road."""
    dataset = ImageSet(FolderSource(folder, train), 16, train, seed=3, finish_on=finish_on)
    config = resolve(
        RunConfig(mode="single", per_device_batch=5, workers=workers, data=f"imagefolder:{folder}"), "cpu", 2
    )
    dataset = SlowStorage(dataset, 0.1) if slow else dataset
    return list(plain_errors(iter(training_batches(config, Topology(0, 0, 1, 1, CPU), dataset, steps))))


@pytest.fixture
def of_all_kinds(data):  # noqa: F811
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

    def refuse(*arguments, **options):
        raise RuntimeError("nvjpegDecode failed: 2")

    monkeypatch.setattr(torchvision.io, "decode_jpeg", refuse)
    found = images_of(of_all_kinds, CPU)
    assert all(torch.equal(ours[0], theirs[0]) for ours, theirs in zip(found, expected, strict=True))


def no_nvjpeg(files, mode, device):
    raise RuntimeError("decode_jpegs_cuda: torchvision not compiled with nvJPEG support\nmore")


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
