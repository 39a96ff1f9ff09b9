"""Hostile and clumsy input to every command: it is refused in a line, in time, and nothing is lost or left running. In
this process, so nothing here starts ranks; tests/unit/fuzz makes up more input."""

import io
import json
import os
import shlex
import signal
import struct
import zlib

import psutil
import pytest
import torch
from PIL import Image

from bench import __main__ as cli
from bench.config.command_line import make_command
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.errors import UserError
from bench.files import atomic_write
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

LIMIT_S = 60  # each takes a fraction of a second on an idle machine
ODD = "\x1b]0;owned\x07a\nb\udcff"  # sets a terminal's title, has two lines, is not UTF-8
NO_FILES = ("./pipe", "./zero", "./loop", "./folder", "./gone", "./binary", "./empty", "./deep")

# What a command reads as a file: {} is one of NO_FILES.
READERS = (
    "run --gpus 2 --device cpu --hosts {}",
    "infer images --resume {} --device cpu",
    "install imagenet --out out --train {}",
    "install imagenet --out out --val tar --labels {}",
    "predict step {} --devices 2 --link 1gbit,10us",
    "cluster emulate --compute {} --device cpu",
    "mistake check {}",
    "diff {} folder",
    "predict mode --records {} --device cpu",
    "status {} --once 1",
    "course grade {}",
    "course release --sets {}",
    "report {}",
)
# What a folder of records may hold as a record.json.
RECORDS = {
    "pipe": os.mkfifo,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
    "folder": os.mkdir,
    "list": "[[]]",
    "brackets": "[" * 100_000,
    "digits": '{"schema_version": 7, "x": ' + "9" * 5_000 + "}",
    "version": '{"schema_version": {}, "kind": []}',
    "binary": b"\xff\xfe\0{}",
}
OF_RECORDS = (
    "report", "report --format=md", "report --format=plots", "report --by=machine", "report --by=student",
    "mistake check", "predict mode --device cpu --records", "diff records",
)  # fmt: skip
NAMED = (
    "report", "report --format", "report --by", "report --by=machine", "report --format=plots", "mistake check",
    "mistake show", "status", "diff folder", "course grade", "install workload", "predict step", "help",
    "site slides --name", "notebooks --name", "course release --name", "course export --platform",
    "course check --sets", "time --cmd", "time --label", "time --limit", "cluster --link", "network --backends",
    "network --sizes", "doctor gpu --part", "doctor gpu --budget",
    "install horovod --jobs", "infer images --resume", "install imagenet --out out --train", "verify --modes",
    "compare --modes", "predict mode --link", "cluster emulate --link", "mistake", "predict", "course", "install",
    "",
)  # fmt: skip
# Where nothing can be written: below a file.
WRITERS = (
    "run --mode single --device cpu --out binary/x",
    "time --out binary/x -- true",
    "report records --by=machine --out binary/x",
    "report records --out binary/x.csv",
    "report records --format=csv --out folder",
    "report records --out binary/x.html",
    "report records --out folder",
    "infer images --resume binary --out binary/x.csv",
    "install workload binary/x.py",
    "install workload folder",
    "install imagenet --train tar --out binary/x",
    "predict step records --devices 2 --link 1gbit,10us --out binary/x",
    "course export --platform gradescope --sets binary --out binary/x",
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The working folder: with regular files, and with things that are not."""
    monkeypatch.chdir(tmp_path)
    contents = {name: RECORDS[name] for name in ("pipe", "zero", "loop")}
    contents |= dict.fromkeys(("folder", "images", "records"), os.mkdir)
    contents |= {"binary": b"\0\xff\xfe\x1b]0;owned\x07\n" * 9, "empty": "", "deep": "[" * 100_000}
    for name, content in (contents | {"tar": bytes(10_240), "images/a.png": b"x"}).items():
        fill(tmp_path / name, content)
    return tmp_path


def fill(path, content) -> None:
    """content: bytes, text, or a function that makes the file."""
    if callable(content):
        content(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def files_below(folder) -> dict:
    found = {}
    for path in folder.rglob("*"):
        regular = path.is_file() and not path.is_symlink()
        found[path] = path.read_bytes() if regular else os.readlink(path) if path.is_symlink() else path.lstat().st_mode
    return found


@pytest.fixture
def refused(place, capsys):
    """``refused(words, most_lines, codes)``: runs a command and checks what holds for all of them. Returns stderr."""

    def run(words, most_lines=100, codes=(1, 2)) -> str:
        before, children = files_below(place), psutil.Process().children(recursive=True)
        handler = signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"{words}: longer than {LIMIT_S} s"))
        signal.alarm(LIMIT_S)
        try:
            code = cli.main([*words])
        except SystemExit as left:
            code = left.code
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, handler)
        said = capsys.readouterr()
        assert code in codes and (said.err + said.out).strip(), (words, code, said)
        assert "Traceback" not in said.err and said.err.count("\n") <= most_lines, (words, said.err)
        assert all(line.isprintable() for line in (said.err + said.out).splitlines()), (words, said)
        after = files_below(place)
        assert {path: after.get(path) for path in before} == before, words
        assert psutil.Process().children(recursive=True) == children, words
        return said.err

    return run


@pytest.mark.parametrize("line", READERS)
def test_a_file_of_another_kind(line, refused):
    for name in NO_FILES:
        refused(shlex.split(line.format(name)), most_lines=3)


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_that_is_none(kind, place, refused):
    folder = place / "records" / "ada" / "run"
    folder.mkdir(parents=True)
    fill(folder / "record.json", RECORDS[kind])
    for line in OF_RECORDS:
        refused([*shlex.split(line), "records"])


def test_a_name_that_no_terminal_should_see(refused):
    for words in NAMED:
        refused([*words.split(), ODD])


@pytest.mark.parametrize("line", WRITERS)
def test_a_place_where_nothing_can_be_written(line, place, refused):
    refused(shlex.split(line))
    assert not (place / "binary").is_dir()


@pytest.mark.parametrize(
    "status",
    [b"", b"\x01" * 88, b"\xff" * 88, b"x" * 9_999, os.mkfifo],
    ids=["empty", "ones", "all ones", "long", "pipe"],
)
def test_a_run_to_be_watched_that_is_none(status, place, refused):
    fill(place / "folder" / ".rank0.status", status)
    for config in ("{}", "null", "[]", '{"model": 7}', '{"data": []}', "[" * 100_000, b"\xff"):
        fill(place / "folder" / "config.json", config)
        refused(["status", "folder", "--once", "1"], codes=(2,))


@pytest.mark.parametrize("name", ['a"""b.py', "\\N{x}.py", "a'b.py", "{x}%s.py", "\\u12.py", "tab\tand\x1b.py"])
def test_a_workload_of_ones_own_runs_whatever_it_is_called(name, place, refused):
    refused(["install", "workload", name], codes=(0,))
    compile((place / name).read_text(), name, "exec")


def test_characters_of_a_record(tmp_path):
    """Whole ones are kept; none controls a terminal."""
    path = tmp_path / "record.json"
    content = records.record().data | {"command": "make \x1b[2J\x07 \\u001b\ttab \ud83d\ude00"}
    path.write_text(json.dumps(content, ensure_ascii=True))
    assert load(path).data["command"] == "make \ufffd[2J\ufffd \\u001b\ttab 😀"
    path.write_text(json.dumps(content | {"command": "half a character: \ud83d"}))
    with pytest.raises(BadRecord):
        load(path)
    for number in ("NaN", "Infinity", "-Infinity"):
        path.write_text(json.dumps(content).replace('"threads_total": ', f'"x": {number}, "threads_total": '))
        with pytest.raises(BadRecord):
            load(path)


def test_a_cell_of_a_table_is_no_formula(tmp_path):
    found = records.record()
    found.data["config"]["program"] = "=HYPERLINK(1)"
    export.write_table([Record(found.data, "")], tmp_path / "t.csv")
    assert ",'=HYPERLINK(1)," in (tmp_path / "t.csv").read_text()


def test_a_device_is_not_replaced_by_a_file(tmp_path):
    """As root it would be, for every process of the machine."""
    os.mkfifo(pipe := tmp_path / "pipe")
    (device := tmp_path / "device").symlink_to("/dev/zero")
    for each in (pipe, device, "/dev/null", "/dev/no-device-here"):
        with pytest.raises(OSError), atomic_write(each) as temporary:
            temporary.touch()
    assert not pipe.is_file() and device.is_symlink() and len(list(tmp_path.iterdir())) == 2


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
    content = io.BytesIO()
    pictures = [Image.new("RGB", (8, 8), (60 * number, 0, 0)) for number in range(frames)]
    pictures[0].save(content, "GIF", save_all=True, append_images=pictures[1:])
    return content.getvalue()


@pytest.mark.parametrize(("data", "number"), [
    (bomb(20_000, 6_000, rows=1), "6000"),
    (bomb(20_000, 20_000, rows=1), "179"),
    (bomb(2**31 - 1, 2**31 - 1, rows=0), ""),
    (bomb(10_001, 10_000, rows=1, text=bytes(2**21)), ""),  # a header that PIL gives up
    (bomb(1, 3_000_000, rows=1), "200"),  # enlarged for its short side
    (animation(3), ""),
    (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n", ""),  # PIL runs Ghostscript
], ids=["120 M", "400 M", "2^62", "text", "narrow", "GIF", "EPS"])  # fmt: skip
def test_a_small_file_that_is_large_in_memory_is_refused_by_its_header(data, number, monkeypatch):
    monkeypatch.setattr(decode.torchvision.io, "decode_image", lambda *_: pytest.fail("decoded"))
    with decode.quiet(), pytest.raises(decode.Unreadable, match=number):
        decode.decode(data)


CYCLIC = {}
CYCLIC["model"] = CYCLIC


@pytest.mark.parametrize("content", [
    {0: torch.ones(2)}, CYCLIC, *({"w": tensor} for tensor in (
        torch.ones(2, 2).to_sparse(), torch.ones(2, device="meta"), torch.ones(2, dtype=torch.complex64),
        torch.tensor([1.0, float("nan")]),
    )),
], ids=["keys that are numbers", "in itself", "sparse", "meta", "complex", "NaN"])  # fmt: skip
def test_weights_that_are_none(content, tmp_path):
    with pytest.raises(UserError):
        weights.weights_in(content, tmp_path / "w.pt")


def test_output_that_is_not_utf_8():
    result = bench("run", "--help", env={"PYTHONIOENCODING": "ascii"})
    assert (result.code, result.stderr) == (0, "")


@pytest.mark.parametrize("url", ["s3://KEY:abc/SECRET+x@bucket/r", "s3://KEY:SECRET@bucket"])
def test_a_secret_in_an_address_is_refused_and_not_repeated(url):
    with pytest.raises(UserError) as caught:
        Remote(url, 5)
    assert "SECRET" not in str(caught.value).replace("AWS_SECRET_ACCESS_KEY", "")
    assert "SECRET" not in make_command(without_names(resolve(RunConfig(copy_to=url), "cpu", 2)))


def test_a_failure_names_no_owner():
    said = without_paths("RuntimeError: [Errno 2] No such file: '/home/jane/data/a b.png' (/home/jane/x/y.so: cannot)")
    assert "jane" not in said and "y.so" in said
