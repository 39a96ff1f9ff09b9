"""`bench install imagenet` on small archives made here: what it makes, what it refuses, and that it continues."""

import io
import signal
import tarfile
import time

import pytest

from bench import __main__ as cli
from bench import files
from bench.errors import UserError
from bench.storage import unpack
from tests.runs import refuses

CLASSES = {"n01": 3, "n02": 1, "n03": 2}
VAL = [("ILSVRC2012_val_00000001.JPEG", "n03"), ("ILSVRC2012_val_00000002.JPEG", "n01")]


def tar_of(entries: dict[str, bytes], kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in entries.items():
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = len(data), kind, target
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def image(name: str) -> bytes:
    """The bytes of an image, of its own size; nothing decodes it here."""
    return f"an image called {name}".encode() * (100 + len(name))


def of_class(name: str) -> dict[str, bytes]:
    return {f"{name}_{n}.JPEG": image(f"{name}_{n}.JPEG") for n in range(CLASSES[name])}


@pytest.fixture
def archives(tmp_path):
    (tmp_path / "train.tar").write_bytes(tar_of({f"{name}.tar": tar_of(of_class(name)) for name in CLASSES}))
    (tmp_path / "val.tar").write_bytes(tar_of({f"./{name}": image(name) for name, _ in VAL}))
    (tmp_path / "labels.csv").write_text("".join(f"{name},{label}\n" for name, label in VAL))
    return tmp_path


def unpacked(archives, to: str = "made", train: bool = True, val: bool = True) -> int:
    words = ["--train", f"{archives}/train.tar"] if train else []
    words += ["--val", f"{archives}/val.tar", "--labels", f"{archives}/labels.csv"] if val else []
    return cli.main(["install", "imagenet", *words, "--out", f"{archives}/{to}"])


def tree(folder) -> dict[str, bytes]:
    """Every file that is not hidden: path -> content."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")
    }  # fmt: skip


WHOLE = {f"train/{name}/{file}": data for name in CLASSES for file, data in of_class(name).items()} | {
    f"val/{label}/{name}": image(name) for name, label in VAL
}


def test_archives_become_class_folders(archives, capsys):
    """Once more changes nothing."""
    assert unpacked(archives) == 0
    assert tree(archives / "made") == WHOLE
    said = capsys.readouterr().out
    assert all(number in said for number in ("3", "6", "1000", "1281167", "2"))
    assert said.splitlines()[-1].endswith(f"DATA=imagefolder:{archives}/made")
    assert not list((archives / "made").glob(".*.part"))
    kept = {path: path.stat().st_mtime_ns for path in (archives / "made").rglob("*.JPEG")}
    assert unpacked(archives) == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def refused(capsys, *values: str) -> None:
    said = capsys.readouterr().err
    assert said.startswith("bench: ") and said.count("\n") == 1 and all(value in said for value in values), said


def test_what_was_stopped_goes_on(archives, monkeypatch):
    """After four images, the fourth of them half written; the first three are not written again."""
    real, written = unpack.shutil.copyfileobj, []

    def stopping(source, file, length):
        written.append(file.name)
        if len(written) == 4:
            file.write(b"half of it")
            raise KeyboardInterrupt
        real(source, file, length)

    monkeypatch.setattr(unpack.shutil, "copyfileobj", stopping)
    assert unpacked(archives) == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # of this process, which continues
    assert not (archives / "made" / "train").exists()
    assert unpacked(archives) == 0 and len(written) == 4 + 3 + 2
    assert tree(archives / "made") == WHOLE and not list((archives / "made").rglob(".*.JPEG.part"))


def test_what_is_there_is_not_written_over_or_counted(archives, capsys):
    """A folder of another, half of another archive, and a strange file beside images."""
    part, taken = archives / "made" / ".train.part", archives / "taken" / "train"
    (part / "n02").mkdir(parents=True)
    taken.mkdir(parents=True)
    (taken / "mine.txt").write_text("mine")
    assert unpacked(archives, to="taken") == 2 and tree(archives / "taken") == {"train/mine.txt": b"mine"}
    refused(capsys, "taken/train")
    (part / unpack.SOURCE).write_text('{"archive": "train.tar", "bytes": 1}')
    assert unpacked(archives) == 2
    refused(capsys, ".train.part")
    source = {"archive": "train.tar", "bytes": (archives / "train.tar").stat().st_size}
    (part / unpack.SOURCE).write_text(unpack.json.dumps(source))
    (part / "n02" / "mine.JPEG").write_text("mine")
    assert unpacked(archives) == 2
    refused(capsys, "n02", "train.tar", "2", "1")


IMAGES = tar_of(of_class("n01"))
HOSTILE = {  # what an archive holds, and the entry that the refusal names
    "a path upwards": ({"n01.tar": tar_of({"../../evil.JPEG": b"x"})}, "'../../evil.JPEG'"),
    "an absolute path": ({"n01.tar": tar_of({"/tmp/evil.JPEG": b"x"})}, "'/tmp/evil.JPEG'"),
    "a class upwards": ({"../evil.tar": IMAGES}, "'../evil.tar'"),
    "a class that is two dots": ({"...tar": IMAGES}, "'...tar'"),
    "a link": ({"n01.tar": tar_of({"a.JPEG": b""}, tarfile.SYMTYPE, "/etc/passwd")}, "'a.JPEG'"),
    "a hard link": ({"n01.tar": tar_of({"a.JPEG": b""}, tarfile.LNKTYPE, "b.JPEG")}, "'a.JPEG'"),
    "a device": ({"n01.tar": tar_of({"a.JPEG": b""}, tarfile.CHRTYPE)}, "'a.JPEG'"),
    "a folder": ({"n01.tar": tar_of({"more": b""}, tarfile.DIRTYPE)}, "'more'"),
    "no image": ({"n01.tar": tar_of({"run.sh": b"x"})}, "'run.sh'"),
    "hidden": ({"n01.tar": tar_of({".a.JPEG": b"x"})}, "'.a.JPEG'"),
    "not a tar of tars": ({"a.JPEG": b"x"}, "<class>.tar"),
    "an inner file that is no tar": ({"n01.tar": b"no tar" * 200}, "train.tar"),
    "an inner tar cut short": ({"n01.tar": IMAGES[: IMAGES.rindex(b"n01_2.JPEG")][:1024]}, "train.tar"),
    "a class twice": ({"n02.tar": IMAGES, "./n02.tar": IMAGES}, "n02"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_an_archive_must_not_hold_is_refused(archives, capsys, name):
    content, words = HOSTILE[name]
    (archives / "train.tar").write_bytes(tar_of(content))
    before = sorted(path.name for path in archives.iterdir())
    assert unpacked(archives, to="a/b/made", val=False) == 2
    refused(capsys, words)
    assert sorted(path.name for path in archives.iterdir()) == sorted([*before, "a"])
    written = [path.relative_to(archives).parts[:4] for path in (archives / "a").rglob("*.JPEG")]
    assert set(written) <= {("a", "b", "made", ".train.part")} and not (archives / "a/b/made/train").exists()


@pytest.mark.parametrize("lost", ["the end", "between two files", "in a file"])
def test_an_archive_that_is_cut_short_is_refused(archives, capsys, lost):
    """Also where tarfile itself takes it for a whole one: between two files."""
    path = archives / "train.tar"
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
    ends = {"the end": last.offset_data + (last.size + 511) // 512 * 512, "between two files": last.offset}
    path.write_bytes(path.read_bytes()[: ends.get(lost, last.offset_data + 700)])
    assert unpacked(archives, val=False) == 2
    refused(capsys, "train.tar")
    assert not (archives / "made" / "train").exists()


def test_labels_must_fit_the_training_classes(archives, capsys):
    (archives / "labels.csv").write_text(f"{VAL[0][0]},n03\n{VAL[1][0]},n09\n")
    assert unpacked(archives) == 2
    refused(capsys, "n09")
    assert (archives / "made" / "train").exists() and not (archives / "made" / "val").exists()
    (archives / "labels.csv").write_text(f"{VAL[0][0]},n03\n{VAL[1][0]},../../evil\n")
    assert unpacked(archives, to="other", train=False) == 2
    refused(capsys, "../../evil")


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("", ["OUT="]),
        ("--out x", ["TRAIN=", "VAL="]),
        ("--out x --val v.tar", ["VAL", "LABELS"]),
        ("--out {0}/x --train {0}/nowhere.tar", ["nowhere.tar"]),
        ("--out {0}/x --train {0}/labels.csv", ["labels.csv"]),
    ],
)
def test_what_is_missing_is_said(archives, capsys, words, values):
    assert cli.main(["install", "imagenet", *words.format(archives).split()]) == 2
    refused(capsys, *values)


def test_one_process_unpacks_at_a_time(archives):
    (archives / "made").mkdir()
    held = files.locked(archives / "made" / ".unpack.lock", time.monotonic(), UserError("never"))
    with held, refuses(archives / "made"):
        unpack.unpack(archives / "train.tar", None, None, archives / "made", print)
