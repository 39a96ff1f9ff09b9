"""`bench install imagenet` on small archives made here: what it makes, what it refuses, and that it goes on."""

import io
import signal
import tarfile
import time

import pytest

from bench import __main__ as cli
from bench import files
from bench.errors import UserError
from bench.storage import unpack

CLASSES = {"n01": 3, "n02": 1, "n03": 2}
VAL = [("ILSVRC2012_val_00000001.JPEG", "n03"), ("ILSVRC2012_val_00000002.JPEG", "n01")]


def tar_of(entries: dict[str, bytes]) -> bytes:
    """A tar of files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def image(name: str) -> bytes:
    """The bytes of an image, of a size of its own; nothing decodes it here."""
    return f"an image called {name}".encode() * (100 + len(name))


def of_class(name: str) -> dict[str, bytes]:
    """The images of a training class."""
    return {f"{name}_{n}.JPEG": image(f"{name}_{n}.JPEG") for n in range(CLASSES[name])}


@pytest.fixture
def archives(tmp_path):
    """A folder with train.tar, val.tar and labels.csv."""
    (tmp_path / "train.tar").write_bytes(tar_of({f"{name}.tar": tar_of(of_class(name)) for name in CLASSES}))
    (tmp_path / "val.tar").write_bytes(tar_of({f"./{name}": image(name) for name, _ in VAL}))
    (tmp_path / "labels.csv").write_text("".join(f"{name},{label}\n" for name, label in VAL))
    return tmp_path


def unpacked(archives, to: str = "made", train: bool = True, val: bool = True) -> int:
    """The command, as a person calls it; its exit code."""
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


def refused(capsys, *words: str) -> None:
    """One line with these words."""
    said = capsys.readouterr().err
    assert said.startswith("bench: ") and said.count("\n") == 1 and all(word in said for word in words), said


def test_archives_become_class_folders(archives, capsys):
    assert unpacked(archives) == 0
    assert tree(archives / "made") == WHOLE
    said = capsys.readouterr().out
    assert "train: 3 classes, 6 images (ImageNet has 1000 and 1281167)" in said and "val: 2 classes, 2 images" in said
    assert said.splitlines()[-1] == f"unpacked: DATA=imagefolder:{archives}/made"
    assert not list((archives / "made").glob(".*.part"))


def test_once_more_changes_nothing(archives, capsys):
    unpacked(archives)
    kept = {path: path.stat().st_mtime_ns for path in (archives / "made").rglob("*.JPEG")}
    assert unpacked(archives) == 0 and "train: unpacked already" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


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
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # of this process, which goes on
    assert not (archives / "made" / "train").exists()
    assert unpacked(archives) == 0 and len(written) == 4 + 3 + 2
    assert tree(archives / "made") == WHOLE and not list((archives / "made").rglob(".*.JPEG.part"))


def test_nothing_that_is_there_is_written_over(archives, capsys):
    (archives / "made" / "train").mkdir(parents=True)
    (archives / "made" / "train" / "mine.txt").write_text("mine")
    assert unpacked(archives) == 2
    refused(capsys, "made/train is there already")
    assert tree(archives / "made") == {"train/mine.txt": b"mine"}


def test_half_of_another_archive_is_not_gone_on_with(archives, capsys):
    part = archives / "made" / ".train.part"
    part.mkdir(parents=True)
    (part / unpack.SOURCE).write_text('{"archive": "train.tar", "bytes": 1}')
    assert unpacked(archives) == 2
    refused(capsys, ".train.part is of another archive: remove it")


def test_a_strange_file_is_not_counted_as_an_image(archives, capsys):
    part = archives / "made" / ".train.part"
    (part / "n02").mkdir(parents=True)
    source = {"archive": "train.tar", "bytes": (archives / "train.tar").stat().st_size}
    (part / unpack.SOURCE).write_text(unpack.json.dumps(source))
    (part / "n02" / "mine.JPEG").write_text("mine")
    assert unpacked(archives) == 2
    refused(capsys, "n02 holds 2 files, 1 of them from train.tar")


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    """A tar of one entry that is no image."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        tar.addfile(info)
    return buffer.getvalue()


HOSTILE = {
    "a path upwards": ({"n01.tar": tar_of({"../../evil.JPEG": b"x"})}, "'../../evil.JPEG'"),
    "an absolute path": ({"n01.tar": tar_of({"/tmp/evil.JPEG": b"x"})}, "'/tmp/evil.JPEG'"),
    "a class upwards": ({"../evil.tar": tar_of(of_class("n01"))}, "'../evil.tar'"),
    "a class that is two dots": ({"...tar": tar_of(of_class("n01"))}, "'...tar'"),
    "a link": ({"n01.tar": entry("a.JPEG", tarfile.SYMTYPE, "/etc/passwd")}, "'a.JPEG', which is no plain file"),
    "a hard link": ({"n01.tar": entry("a.JPEG", tarfile.LNKTYPE, "b.JPEG")}, "no plain file"),
    "a device": ({"n01.tar": entry("a.JPEG", tarfile.CHRTYPE)}, "no plain file"),
    "a folder": ({"n01.tar": entry("more", tarfile.DIRTYPE)}, "no plain file"),
    "no image": ({"n01.tar": tar_of({"run.sh": b"x"})}, "'run.sh'"),
    "hidden": ({"n01.tar": tar_of({".a.JPEG": b"x"})}, "'.a.JPEG'"),
    "not a tar of tars": ({"a.JPEG": b"x"}, "one <class>.tar per class"),
    "an inner file that is no tar": ({"n01.tar": b"no tar" * 200}, "cut short, damaged or no tar"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_an_archive_must_not_hold_is_refused(archives, capsys, name):
    content, words = HOSTILE[name]
    (archives / "train.tar").write_bytes(tar_of(content))
    before = sorted(path.name for path in archives.iterdir())
    assert unpacked(archives, to="a/b/made", val=False) == 2
    refused(capsys, words)
    assert sorted(path.name for path in archives.iterdir()) == sorted([*before, "a"])
    assert not list((archives / "a").rglob("*.JPEG")) and not (archives / "a/b/made/train").exists()


def test_names_that_come_twice_are_refused(archives, capsys):
    inner = tar_of(of_class("n02"))
    (archives / "train.tar").write_bytes(tar_of({"n02.tar": inner, "./n02.tar": inner}))
    assert unpacked(archives, val=False) == 2
    refused(capsys, "the class n02 twice")


@pytest.mark.parametrize("lost", ["the end", "between two files", "in a file", "in an inner tar"])
def test_an_archive_that_is_cut_short_is_refused(archives, capsys, lost):
    """Also where tarfile itself takes it for a whole one: between two files."""
    path, whole = archives / "train.tar", (archives / "train.tar").read_bytes()
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
    ends = {"the end": last.offset_data + (last.size + 511) // 512 * 512, "between two files": last.offset,
            "in a file": last.offset_data + 700}  # fmt: skip
    inner = tar_of(of_class("n01"))
    short = inner[: inner.rindex(b"n01_2.JPEG", 0, len(inner))][:1024]
    path.write_bytes(whole[: ends[lost]] if lost in ends else tar_of({"n01.tar": short}))
    assert unpacked(archives, val=False) == 2
    refused(capsys, "train.tar")
    assert not (archives / "made" / "train").exists()


def test_labels_must_fit_the_training_classes(archives, capsys):
    (archives / "labels.csv").write_text(f"{VAL[0][0]},n03\n{VAL[1][0]},n09\n")
    assert unpacked(archives) == 2
    refused(capsys, "has the class n09, which the training images have not")
    assert (archives / "made" / "train").exists() and not (archives / "made" / "val").exists()


def test_a_label_is_no_path(archives, capsys):
    (archives / "labels.csv").write_text(f"{VAL[0][0]},n03\n{VAL[1][0]},../../evil\n")
    assert unpacked(archives, train=False) == 2
    refused(capsys, "cannot be the name of a class folder")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "OUT=… is needed"),
        (["--out", "x"], "TRAIN=… or VAL=… is needed"),
        (["--out", "x", "--val", "v.tar"], "VAL and LABELS go together"),
        (["--out", "{}/x", "--train", "{}/nowhere.tar"], "nowhere.tar is not there"),
        (["--out", "{}/x", "--train", "{}/labels.csv"], "cut short, damaged or no tar"),
    ],
)
def test_what_is_missing_is_said(archives, capsys, words, said):
    assert cli.main(["install", "imagenet", *(word.format(archives) for word in words)]) == 2
    refused(capsys, said)


def test_one_process_unpacks_at_a_time(archives):
    (archives / "made").mkdir()
    held = files.locked(archives / "made" / ".unpack.lock", time.monotonic(), UserError("never"))
    with held, pytest.raises(UserError, match="another process unpacks into"):
        unpack.unpack(archives / "train.tar", None, None, archives / "made", print)
