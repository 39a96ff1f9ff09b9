"""What a clumsy or hostile hand can give: it is refused in one line, or does nothing. With processes: multiprocess."""

import io
import json
import os
import struct
import zlib

import pytest
import torch
from PIL import Image

from bench import __main__ as cli
from bench.config.command_line import make_command
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.course.exercises.grade import cells_of
from bench.errors import UserError
from bench.files import written_whole
from bench.measure.environment import relevant_variables
from bench.record.privacy import without_names, without_paths
from bench.record.read import load
from bench.record.schema import BadRecord
from bench.record.view import Record
from bench.report import export
from bench.storage.remote import Remote
from bench.workload import weights
from bench.workload.images import decode
from tests import records
from tests.runs import bench


@pytest.fixture
def path(tmp_path):
    return tmp_path / "record.json"


def good() -> dict:
    """The content of a record."""
    return records.record().data


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_figure_that_is_no_number(path, number):
    content = json.dumps(good()).replace('"threads_total": ', f'"x": {number}, "threads_total": ')
    path.write_text(content)
    with pytest.raises(BadRecord, match="not a number"):
        load(path)


def test_what_is_no_plain_file(path, tmp_path):
    os.mkfifo(path)
    endless = tmp_path / "endless.json"
    endless.symlink_to("/dev/zero")
    for each in (path, endless):
        with pytest.raises(BadRecord, match="not a regular file"):
            load(each)


def test_what_is_no_plain_file_is_not_replaced(tmp_path):
    """As root a device would be, for every process of the machine."""
    os.mkfifo(pipe := tmp_path / "pipe")
    (device := tmp_path / "device").symlink_to("/dev/zero")
    for each in (pipe, device, "/dev/null", "/dev/no-device-here"):
        with pytest.raises(OSError, match="no plain file"), written_whole(each) as temporary:
            temporary.touch()
    assert not pipe.is_file() and device.is_symlink() and len(list(tmp_path.iterdir())) == 2


def test_half_a_character_is_refused_and_whole_ones_are_kept(path):
    path.write_text(json.dumps(good() | {"command": "make bench \ud83d\ude00"}, ensure_ascii=True))
    assert load(path).data["command"] == "make bench 😀"
    path.write_text(json.dumps(good() | {"command": "make bench \ud83d"}))
    with pytest.raises(BadRecord):
        load(path)


def test_no_control_character_of_a_record_gets_to_a_terminal(path):
    path.write_text(json.dumps(good() | {"command": "make \x1b[2J\x07 \\u001b\ttab"}))
    assert load(path).data["command"] == "make \ufffd[2J\ufffd \\u001b\ttab"


def test_nor_one_of_an_error(capsys):
    assert cli.main(["run", "--mode", "\x1b[31mred\x07"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.rstrip("\n").isprintable()


def test_output_that_is_not_utf_8():
    result = bench("run", "--help", env={"PYTHONIOENCODING": "ascii"})
    assert (result.code, result.stderr) == (0, "")


def bomb(width: int, height: int, rows: int | None = None, text: bytes = b"") -> bytes:
    """A PNG of zeros, a thousandth of its pixels in size. rows: that it holds. text: a packed comment before them."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    rows = height if rows is None else rows
    pixels = b"".join(packer.compress(bytes(width * 3 + 1)) for _ in range(rows)) + packer.flush()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    head += chunk(b"zTXt", b"Comment\0\0" + zlib.compress(text)) if text else b""
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def animation(frames: int) -> bytes:
    """A GIF of so many pictures."""
    content = io.BytesIO()
    pictures = [Image.new("RGB", (8, 8), (60 * number, 0, 0)) for number in range(frames)]
    pictures[0].save(content, "GIF", save_all=True, append_images=pictures[1:])
    return content.getvalue()


@pytest.mark.parametrize(("data", "why"), [
    (bomb(20_000, 6_000, rows=1), "20000 × 6000 pixels"),
    (bomb(20_000, 20_000, rows=1), "more than 179 million pixels"),
    (bomb(2**31 - 1, 2**31 - 1, rows=0), r"\w"),
    (bomb(10_001, 10_000, rows=1, text=bytes(2**21)), r"\w"),  # a header that PIL gives up
    (bomb(1, 3_000_000, rows=1), "no side may be more than 200 times the other"),  # enlarged for its short side
    (animation(3), "an animation"),
    (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n", "no type of image"),  # PIL runs Ghostscript
], ids=["120 M", "400 M", "2^62", "text", "narrow", "GIF", "EPS"])  # fmt: skip
def test_a_small_file_that_is_large_in_memory(data, why, monkeypatch):
    """It is refused by its header."""
    monkeypatch.setattr(decode.torchvision.io, "decode_image", lambda *_: pytest.fail("decoded"))
    with decode.quiet(), pytest.raises(decode.Unreadable, match=why):
        decode.decode(data)


def test_an_image_that_is_none_of_these():
    with decode.quiet():
        assert decode.decode(bomb(40, 30)).shape == (3, 30, 40) and decode.decode(bomb(2_000, 10)).shape == (
            3,
            10,
            2_000,
        )


@pytest.mark.parametrize("url", ["s3://KEY:abc/SECRET+x@bucket/r", "s3://KEY:SECRET@bucket"])
def test_a_secret_in_an_address_is_refused_and_not_said(url):
    with pytest.raises(UserError) as caught:
        Remote(url, 5)
    assert "SECRET" not in str(caught.value).replace("AWS_SECRET_ACCESS_KEY", "")
    assert "SECRET" not in make_command(without_names(resolve(RunConfig(copy_to=url), "cpu", 2)))


def test_variables_name_no_owner():
    found = relevant_variables({
        "OMP_CRED": "x", "NCCL_COMM_ID": "10.1.2.3:4", "NCCL_SOCKET_IFNAME": "eth0", "TORCH_HOME": "/home/jane/torch",
        "LD_PRELOAD": "/home/jane/lib/libtcmalloc.so:/opt/b.so", "CUDA_VISIBLE_DEVICES": "0,1",
        "HOROVOD_X": "fe80::1:2", "MKL_URL": "http://jane@host/",
    })  # fmt: skip
    assert found == {"CUDA_VISIBLE_DEVICES": "0,1", "LD_PRELOAD": "libtcmalloc.so:b.so", "NCCL_SOCKET_IFNAME": "eth0",
                     "TORCH_HOME": "torch"}  # fmt: skip


def test_a_failure_names_no_owner():
    said = without_paths("RuntimeError: [Errno 2] No such file: '/home/jane/data/a b.png' (/home/jane/x/y.so: cannot)")
    assert "jane" not in said and "y.so" in said


def test_a_command_can_be_pasted_into_a_shell():
    config = resolve(RunConfig(mode="single", data="imagefolder:/a b/$(touch x);c"), "cpu", 2)
    assert "DATA='imagefolder:/a b/$(touch x);c'" in make_command(config)


def test_a_cell_of_a_table_is_no_formula(tmp_path):
    found = records.record()
    found.data["config"]["program"] = "=HYPERLINK(1)"
    export.write_table([Record(found.data, "")], tmp_path / "t.csv")
    assert ",'=HYPERLINK(1)," in (tmp_path / "t.csv").read_text()


def cyclic() -> dict:
    content = {}
    content["model"] = content
    return content


@pytest.mark.parametrize(
    "content",
    [
        {0: torch.ones(2)},
        cyclic(),
        {"w": torch.ones(2, 2).to_sparse()},
        {"w": torch.ones(2, device="meta")},
        {"w": torch.ones(2, dtype=torch.complex64)},
        {"w": torch.tensor([1.0, float("nan")])},
    ],
    ids=["keys that are numbers", "in itself", "sparse", "meta", "complex", "NaN"],
)
def test_weights_that_are_none_are_one_line(content, tmp_path):
    with pytest.raises(UserError) as caught:
        weights.weights_in(content, tmp_path / "w.pt")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"threads": 100_000}, {"out": ""}, {"warmup_steps": 2**40}, {"timed_steps": 2**31}], ids=str
)
def test_numbers_out_of_bounds(options):
    with pytest.raises(UserError):
        resolve(RunConfig(**options), "cpu", 2)


def test_half_a_character_in_a_notebook(tmp_path):
    path = tmp_path / "00_sample.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": "x = '\ud800'", "id": "a", "metadata": {}}]}))
    (cell,) = cells_of(path)
    cell["source"].encode()
