"""Records of many runs in one file: read as their own files would be, refused by line, and written by the packer."""

import csv
import gzip
import json
import re
import shutil
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.analysis.suite import suites_of
from bench.record import packed
from bench.record.read import find_records, find_runs, load
from bench.record.schema import BadRecord
from bench.report.pooling import records_at
from bench.tasks.network import record as network
from tests import networks
from tests.runs import ROOT
from tests.validation import pack

OLD = Path(__file__).with_name("old_records")  # a folder for each run, as older versions wrote them
SUITE, RUN = "compare-20261121-075527-754d", "20261121-075540-ddp-2xresnet18-0064"
FAILED = "lab-20261121-155655-1ee1/20261121-155705-ddp-2xresnet18-3917"


@pytest.fixture
def both(tmp_path) -> tuple[Path, Path]:
    for name in ("folders", "packs"):
        shutil.copytree(OLD, tmp_path / name)
    (tmp_path / "packs" / FAILED / "rank1.log").write_text("".join(f"line {n}\n" for n in range(100)))
    (tmp_path / "packs" / SUITE / RUN / "rank0.log").write_text("all is well\n")
    assert pack.main([str(tmp_path / "packs")]) == 0
    return tmp_path / "folders", tmp_path / "packs"


def test_both_forms_give_the_same_records(both):
    folders, packs = both
    (plain, _), (read, refused) = map(find_records, both)
    assert len(plain) == 10 and not refused
    assert [record.data for record in read] == [record.data for record in plain]
    assert [Path(r.folder).relative_to(packs) for r in read] == [Path(r.folder).relative_to(folders) for r in plain]
    assert [r.run_id for r in find_runs(packs)] == [r.run_id for r in plain]
    assert suites_of(read)[0].folder == packs / suites_of(plain)[0].folder.name  # where its pictures are


def test_what_is_left_are_packs_tables_and_the_end_of_a_failed_runs_logs(both):
    _, packs = both
    files = {path.relative_to(packs).as_posix() for path in packs.rglob("*") if path.is_file()}
    suites = {path.parent.parent.relative_to(OLD).as_posix() for path in OLD.glob("*-*-*-*/*/record.json")}
    suites = {name for name in suites if "baselines" not in name and not (OLD / name / "record.json").exists()}
    assert files == {f"{name}/records.{end}" for name in suites for end in ("jsonl.gz", "csv")} | {
        "runs.jsonl.gz", "runs.csv"}  # fmt: skip
    rows = {row["run_id"]: row for row in csv.DictReader((packs / SUITE / "records.csv").read_text().splitlines())}
    record = load(OLD / SUITE / RUN / "record.json")
    assert float(rows[RUN]["throughput"]) == pytest.approx(record.throughput, rel=1e-4)
    assert (rows[RUN]["mode"], rows[RUN]["num_devices"], rows[RUN]["unit"]) == ("ddp", "2", "images/s")
    texts = [line for path in packs.rglob("*.gz") for line in gzip.decompress(path.read_bytes()).splitlines()]
    tails = {line["file"]: line["log_tail"] for line in map(json.loads, texts) if "log_tail" in line}
    assert list(tails) == [f"{FAILED.partition('/')[2]}/record.json"]
    (tail,) = tails.values()
    assert tail.startswith("==> rank1.log <==\nline 60\n") and tail.endswith("line 99")


def test_one_record_is_named_by_its_path_in_a_pack(both, monkeypatch, capsys):
    folders, packs = both
    wanted = load(folders / SUITE / RUN / "record.json")
    for place in (packs / SUITE / RUN / "record.json", packs / SUITE / RUN):
        assert [record.data for record in records_at(place)[0]] == [wanted.data]
    assert len(records_at(packs / SUITE / "records.jsonl.gz")[0]) == 2
    (packs / SUITE / RUN / "pictures").mkdir(parents=True)  # its folder is in the pack, and now on the disk too
    assert [record.data for record in records_at(packs / SUITE / RUN)[0]] == [wanted.data]
    monkeypatch.chdir(packs / SUITE)
    assert load(Path(RUN) / "record.json").data == wanted.data
    with pytest.raises(BadRecord, match="2 records"):
        load(packs / SUITE / "records.jsonl.gz")
    for form in ("csv", "html", "plots"):
        assert cli.main(["report", str(packs / "runs.jsonl.gz"), f"--format={form}"]) == 0
    assert (packs / "report.html").exists() and (packs / "pictures" / "runs.svg").exists()
    assert cli.main(["diff", str(packs / SUITE / RUN), str(folders / SUITE / RUN)]) == 0
    assert f"{wanted.throughput:.1f}" in capsys.readouterr().out


def test_networks_are_packed_and_found(tmp_path):
    (tmp_path / "network-1" / "run").mkdir(parents=True)
    (tmp_path / "network-1" / "run" / network.NAME).write_text(json.dumps(networks.data()))
    before = network.find(tmp_path)[0]
    pack.main([str(tmp_path)])
    found, refused = network.find(tmp_path)
    assert [each.data for each in found] == [each.data for each in before] and len(found) == 1 and not refused
    assert network.place_of(found) == tmp_path / "network-1"


def test_what_is_damaged_is_refused_by_name_and_the_rest_is_read(both):
    """A pack, a record in a pack, and a record.json beside the pack, which comes first."""
    folders, packs = both
    path = packs / SUITE / "records.jsonl.gz"
    whole = path.read_bytes()
    text = gzip.decompress(whole)
    for damaged in (
        whole[:-30],
        whole[:20] + bytes([whole[20] ^ 255]) + whole[21:],
        gzip.compress(b'{"run_id": "1"}\n'),
        gzip.compress(text.replace(b'"file": "', b'"file": "../')),
        gzip.compress(text.replace(b'"file": "', b'"file": "/')),
        gzip.compress(b"\xff\xfe\n"),
    ):
        path.write_bytes(damaged)
        found, refused = find_records(packs)
        assert len(found) == 8 and len(refused) == 1 and str(path) in refused[0] and "\n" not in refused[0]
    edited = re.sub(rb'"throughput_images_per_s": [\d.]+', b'"throughput_images_per_s": 1e9', text, count=1)
    path.write_bytes(gzip.compress(edited))
    found, refused = find_records(packs)
    assert len(found) == 9 and len(refused) == 1 and "/record.json" in refused[0]
    path.write_bytes(whole)
    shutil.copytree(folders / SUITE / RUN, packs / SUITE / RUN)
    (packs / SUITE / RUN / "record.json").write_text("{")
    found, refused = find_records(packs)
    assert len(found) == 9 and len(refused) == 1


def test_the_committed_results_are_few_files():
    """Records of GPUs are extra."""
    results = ROOT / "results"
    files = [path for path in results.rglob("*") if path.is_file() and path.relative_to(results).parts[0] != "runs"
             and not re.match(r"reference/\d+x-", path.relative_to(results).as_posix())]  # fmt: skip
    assert len(files) <= 200 and sum(path.stat().st_size for path in files) <= 12 * 2**20
    assert not [path for path in files if path.suffix in (".log", ".png")]
    for path in packed.find_files(results / "reference", "record.json"):
        if not path.exists():
            table = next(pack.with_name(f"{pack.name.partition('.')[0]}.csv") for pack in packed.packs_above(path))
            assert path.parent.name in table.read_text(), path
