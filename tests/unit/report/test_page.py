"""bench/report/page.py: the answer first, everything in one file, nothing bad hidden. The page is checked by its
structure: sections, tables and pictures, and the numbers in them against the records."""

import functools
import re
import time
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from bench import files
from bench.analysis import drawing, stats
from bench.analysis.suite import suites_of
from bench.errors import UserError
from bench.record.read import find_records
from bench.report import export, page
from bench.studies.base import Study
from bench.studies.registry import STUDIES, study_of
from tests import records
from tests.shown import in_one_line, plain

pytestmark = pytest.mark.slow

SVG = "{http://www.w3.org/2000/svg}svg"
NEW, OLD = "compare-20260102-030405-0002", "compare-20260102-030405-0001"


@pytest.fixture(scope="module")
def made():
    """Records of one suite of each kind, and of an older comparison."""
    found = [each for study in records.PROGRAMS for each in records.suite_records(study, rounds=3)]
    newer = records.suite_records("compare", rounds=3, name="0002")
    return found + newer + records.lab_records("no-reshuffle")


@pytest.fixture(scope="module")
def newest(made):
    """The suites that the page shows in full: of each subject the newest."""
    return list({(suite.study, study_of(suite).about(suite)): suite for suite in suites_of(made)}.values())


@pytest.fixture(scope="module")
def text(made):
    """The page of all of them, of runs of no suite, one of which failed, and of a refused file."""
    others = [records.record("ddp"), records.record("dp", failed="killed", seconds=7)]
    return page.page(suites_of(made), others, ["/a/<b>/record.json: not a readable record"])


@pytest.fixture
def without_pictures(monkeypatch):
    monkeypatch.setattr(Study, "figures", lambda self, result: {})


@functools.cache
def parsed(text: str) -> ElementTree.Element:
    """The page as a tree; it is an error where a tag is not closed in order."""
    return ElementTree.fromstring(re.sub(r"<(meta|link|br)\b([^>]*)>", r"<\1\2/>", text))


def words(node: ElementTree.Element) -> str:
    return in_one_line(" ".join(node.itertext()))


def sections(text: str) -> dict[str, ElementTree.Element]:
    """What has its own id: a suite's section or card, by the suite's id."""
    return {node.get("id"): node for tag in ("section", "article") for node in parsed(text).iter(tag) if node.get("id")}


def of_suites(*suites, others=(), refused=()) -> str:
    return page.page(list(suites), list(others), list(refused))


def compare(rounds: int = 3, programs=None, **common):
    return records.suite("compare", programs, rounds, **common)


def test_one_file_that_loads_nothing_with_every_reference_inside(text):
    tree = parsed(text)
    assert tree.tag == "html" and not list(tree.iter("script"))
    links = [value for node in tree.iter() for name, value in node.items() if name.endswith(("href", "src", "action"))]
    assert all(link.startswith("#") or link == "data:," for link in links)
    without_namespaces = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert not re.search(r"https?://|@import|url\((?!#)", without_namespaces)
    ids = [node.get("id") for node in tree.iter() if node.get("id")]
    used = [link[1:] for link in links if link.startswith("#")] + re.findall(r"url\(#([^)]+)\)", text)
    assert len(ids) == len(set(ids)) and set(used) <= set(ids)


def test_each_suite_is_there_once_with_its_answer_pictures_and_commands(text, newest):
    """In the registry's order, the one with the advice first."""
    found = sections(text)
    assert {suite.study for suite in newest} == set(STUDIES)
    assert [name for name in found if name != "museum"] == [
        suite.id for suite in sorted(newest, key=lambda suite: list(STUDIES).index(suite.study))]  # fmt: skip
    for suite in newest:
        study, node = study_of(suite), found[suite.id]
        result = study.result(suite)
        figures = [each.get("aria-label") for each in node.iter("figure")]
        assert figures == [f"{study.heading}: {name.replace('-', ' ')}" for name in study.figures(result)] != []
        assert len(list(node.iter(SVG))) == len(figures)
        said = words(node)
        answer = [line for line in study.answer(result) if suite.study != "compare"]
        for line in [*answer, study.repeat(suite), *(f"{p.label}: {p.first.command}" for p in suite.programs.values())]:
            assert in_one_line(line) in said, suite.id
        assert suite.first["environment"]["git"]["revision"] in said


def test_the_answer_and_its_picture_come_before_the_tables_which_are_folded(text):
    node = sections(text)[NEW]
    (advice,) = [each for each in node.iter("div") if each.get("id") == "advice"]
    order = list(node.iter())
    assert order.index(advice) < order.index(next(node.iter("figure"))) < order.index(next(node.iter("table")))
    folded = {table for details in node.iter("details") for table in details.iter("table")}
    assert set(node.iter("table")) == folded != set()
    assert "make predict mode" in words(node)
    assert 'id="advice"' not in of_suites(records.suite("breakdown", rounds=2))


def test_a_pair_is_stated_in_one_direction_with_one_interval(text, newest):
    """In the box, in the picture and in the tables, whichever is the faster of the two."""
    checked = 0
    for suite in (each for each in newest if each.study in ("compare", "replay")):
        said = words(sections(text)[suite.id])
        for pair in study_of(suite).result(suite).pairs:
            a, b = re.escape(pair.a), re.escape(pair.b)
            assert not re.search(rf"(?<!\S){a} (is \S+ % (faster|slower) than|/|vs) {b}(?!\S)", said), pair.sentence()
            found = set(re.findall(rf"(?<!\S){b} is (\S+ % (?:faster|slower)) than {a}(?!\S)", said))
            assert len(found) <= 1 and all(f"is {each} than" in pair.sentence() for each in found)
            checked += len(found)
    assert checked >= 2


def test_the_numbers_of_a_comparison_are_those_of_its_records(text, newest):
    (suite,) = [each for each in newest if each.study == "compare"]
    rows = [[words(cell) for cell in row] for row in sections(text)[NEW].iter("tr") if len(row) == 9]
    speeds = {label: program.throughputs for label, program in suite.programs.items()}

    def row(name: str) -> list[float]:
        (found,) = [each for each in rows if each[0] == name]
        return [float(number) for number in re.findall(r"\d+\.\d+", " ".join(found[1:]))]

    for label, values in speeds.items():
        lowest_highest = [pytest.approx(each, abs=0.06) for each in (min(values), max(values))]
        assert row(label)[1:3] == lowest_highest, label
    for a, b in (("single", "dp"), ("single", "ddp"), ("ddp", "horovod")):
        expected = stats.interval(speeds[a], speeds[b], stats.CONFIDENCE)
        assert row(f"{b} / {a}")[:3] == pytest.approx(expected, abs=0.0006)


def test_of_one_subject_the_newest_is_shown_in_full_and_a_full_one_is_not_replaced_by_a_quick_one(
    text, without_pictures
):
    assert NEW in sections(text) and OLD not in sections(text) and f"{OLD}: single, dp, ddp" in plain(text)
    suites = [compare(rounds, name=f"000{i}") for i, rounds in enumerate((8, 9, 2), start=1)]
    profiled = {"suite": "compare-20260102-030405-0009", "program": "ddp", "round": 0, "profile": True, "seconds": 9e6}
    nothing = suites_of([records.record("ddp", **profiled)])  # not one whole round
    assert list(sections(of_suites(*suites))) == [suites[1].id]
    assert suites[2].id in sections(of_suites(suites[2], *nothing))
    later = records.loaded(records.suite_records("compare", name="000a"), 0.41)
    quiet_first = of_suites(suites[0], *suites_of(later))
    assert list(sections(quiet_first)) == [suites[0].id] and 'class="grey"' not in quiet_first


def test_machines_numbers_of_devices_and_engines_are_subjects_of_their_own(without_pictures):
    suites = [compare(), compare(name="0002", programs=records.compare_programs(4)),
              compare(name="0003", device="cuda")]  # fmt: skip
    horovod = {"horovod": {"mode": "horovod"}, "horovod fusion_mb=1": {"mode": "horovod", "throughput": 99.0}}
    suites += [records.suite("sweep", each, rounds=3, name=name)
               for name, each in (("0004", horovod), ("0005", records.sweep_programs()))]  # fmt: skip
    text = of_suites(*suites)
    assert set(sections(text)) == {suite.id for suite in suites}
    headings = [words(each) for each in parsed(text).iter("h2")]
    assert len(set(headings)) == len(headings) == 5


def test_what_failed_or_was_refused_is_shown_and_breaks_nothing(text, without_pictures):
    assert {words(each) for each in parsed(text).iter("h2")} >= {"Failed runs", "Invalid files"}
    assert "/a/&lt;b&gt;/record.json" in text and "rank 0 was killed" in text
    labels = {"suite": "compare-20260102-030405-000f", "program": "ddp"}
    failed = [records.record("ddp", failed="killed", round=n, seconds=n, **labels) for n in range(2)]
    assert suites_of(failed) == []
    said = plain(of_suites(others=failed))
    assert f"{labels['suite']}: " in said and "0 of 2" in said and said.count("rank 0 was killed") == 2
    programs = {'<img src="x">': {"mode": "ddp"}, "</svg><b>": {"mode": "horovod"}}
    text = of_suites(compare(2, programs=programs), refused=["<script>alert(1)</script>"])
    assert not {"script", "img", "b"} & {node.tag for node in parsed(text).iter()}


def test_records_that_cannot_be_compared_are_refused_and_the_others_shown(without_pictures):
    """Of different workloads, or profiled ones without a whole round."""
    mixed = compare(2, programs={"ddp": {"mode": "ddp"}, "horovod": {"mode": "horovod", "model": "resnet34"}})
    labels = {"study": "breakdown", "suite": "breakdown-1-0001", "round": 0, "profile": True}
    profiled = [records.record(m, program=m, seconds=i, **labels) for i, m in enumerate(("dp", "ddp"))]
    good = records.suite("replay", rounds=2)
    found = sections(of_suites(mixed, good, *suites_of(profiled)))
    refused = {name: words(node) for name, node in found.items() if "Refused: " in words(node)}
    assert set(refused) == {mixed.id, "breakdown-1-0001"} and good.id in found
    assert "resnet18" in refused[mixed.id] and "resnet34" in refused[mixed.id]
    assert "dp, profiled: make bench" in refused["breakdown-1-0001"]


def test_single_runs_are_side_by_side_and_have_no_verdict():
    """A bar for each program of a workload; what each trained is in the table."""
    runs = [records.record(mode, throughput, seconds=at) for at, (mode, throughput) in
            enumerate([("dp", 80.0), ("ddp", 100.0), ("ddp", 110.0)])]  # fmt: skip
    runs += [records.record("ddp", 30.0, seconds=9, model="alexnet", image_size=64)]
    text = of_suites(others=runs)
    said, table = plain(text), next(parsed(text).iter("table"))
    assert text.count("<figure") == 1 and len(list(table.iter("tr"))) == 1 + len(runs)
    assert "alexnet" in words(table) and all(record.command in said for record in runs)
    assert "faster" not in said and "95 %" not in said and "make compare" in said  # how to get a verdict
    assert "J per example" not in said and "SM clock" not in text  # nobody reads the energy of a CPU


def test_a_run_on_gpus_shows_their_energy_and_their_power_over_time():
    run = records.record("ddp", 100.0, device="cuda", batch=32)  # 2 GPUs × 400 W × 5.84 s between the marks, 384 images
    wide = {"gradient_as_bucket_view": True, "static_graph": True, "compile": True, "compile_mode": "reduce-overhead"}
    text = of_suites(others=[records.record("ddp", seconds=9, bucket_cap_mb=1.5, broadcast_buffers=False, **wide), run])
    grid = next(parsed(text).iter("table"))
    assert "J per example" in words(grid) and [words(row[-2]) for row in grid.iter("tr")][1:] == ["", "12.2"]
    (figure,) = [each for each in parsed(text).iter("figure") if "SM clock" in words(each)]
    assert "Test GPU 80GB, 12.2 J per example" in words(figure) and "power" in words(figure)
    assert len(ids := re.findall(r'\bid="([^"]+)"', text)) == len({*ids})  # the ids of a picture's clips too


def test_an_unfair_comparison_is_flagged_before_the_answer(without_pictures):
    programs = records.compare_programs()
    programs["dp"]["item_sync"] = True
    (node,) = sections(of_suites(compare(2, programs=programs))).values()
    classes = [each.get("class") for each in node.iter() if each.get("class") in ("flag", "answer")]
    assert classes[0] == "flag" and "answer" in classes
    assert any("NOT A FAIR COMPARISON" in words(caption) for caption in node.iter("caption"))


def test_a_disturbed_suite_is_grey_labelled_and_without_verdict_or_advice():
    made = records.suite_records("compare", rounds=4)
    made += records.suite_records("breakdown", rounds=4)
    text = of_suites(*suites_of([*records.loaded(made[:1], 0.41), *made[1:-1], *records.loaded(made[-1:], 0.41)]))
    said = plain(text)
    assert [node.get("class") for node in sections(text).values()] == ["grey"] * 2 and "41 % of the CPU" in said
    assert not re.search(r"\d % (faster|slower) than", said)
    assert "use single" not in said and "distribute:" not in said
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert pictures and all("DISTURBED" in plain(picture) for picture in pictures)
    colours = {tuple(each[i : i + 2] for i in (0, 2, 4)) for p in pictures for each in re.findall("#([0-9a-f]{6})", p)}
    assert all(len(set(channels)) == 1 for channels in colours), colours


def test_a_page_a_picture_and_a_table_are_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    folder = tmp_path / "new"
    writers = [lambda text: page.write_page([], [], [text], folder / "report.html"),
               lambda text: drawing.save(Figure(facecolor=text), folder, "picture"),
               lambda text: export.save(folder / "csv", lambda path: path.write_text(text), replace=True)]  # fmt: skip
    for write in writers:
        write("black")
    before = {path: path.read_bytes() for path in folder.iterdir()}

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "synchronise", full)
    for write in writers:
        with pytest.raises((OSError, UserError), match="No space left"):
            write("white")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before and len(before) == 3


def test_five_hundred_records_are_reported_within_five_seconds(tmp_path):
    """Read, checked, compared, drawn and written: five comparisons of a hundred records each."""
    found = [each for n in range(5) for each in records.suite_records("compare", rounds=20, name=f"{n + 1:04x}")]
    folder = records.store(tmp_path / "runs", found)
    of_suites(compare(2))  # matplotlib is loaded, its fonts are found
    began = time.process_time()
    read, refused = find_records(folder)
    page.write_page(suites_of(read), [], refused, tmp_path / "report.html")
    assert time.process_time() - began < 5.0  # a fast core takes 1, a slow one 2
    assert len(read) == 500 and not refused
