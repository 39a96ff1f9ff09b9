"""bench/report/page.py: the answer first, everything in one file, nothing bad hidden."""

import re
import time
from html.parser import HTMLParser

import pytest

from bench.analysis.suite import Suite, suites_of
from bench.record.read import find_records
from bench.report import page
from bench.studies.base import Study
from bench.studies.registry import STUDIES, study_of
from tests import records
from tests.shown import in_one_line, plain

pytestmark = pytest.mark.slow

VOID = {"meta", "link", "br"}


@pytest.fixture(scope="module")
def made():
    """Records of one suite of each kind, of an older comparison, of single runs, and one that failed."""
    found = records.suite_records("compare", records.compare_programs(), rounds=3, name="0001")
    found += records.suite_records("compare", records.compare_programs(), rounds=3, name="0002")
    found += records.suite_records("weak", records.scaling_programs("weak"), rounds=2)
    found += records.suite_records("strong", records.scaling_programs("strong"), rounds=2)
    found += records.suite_records("breakdown", records.breakdown_programs(), rounds=2)
    found += records.suite_records("knobs", records.knob_programs(), rounds=2)
    found += records.suite_records("accuracy", records.accuracy_programs(), rounds=3)
    found += records.suite_records("unsynced", records.unsynced_programs(), rounds=3)
    found += records.lab_records("no-reshuffle")
    return found + records.suite_records("replay", records.replay_programs(), rounds=2)


@pytest.fixture(scope="module")
def newest(made):
    """The suites that the page shows in full: of each subject the newest."""
    return list({(suite.study, study_of(suite).about(suite)): suite for suite in suites_of(made)}.values())


@pytest.fixture(scope="module")
def others():
    """Records of no suite."""
    return [records.record("ddp"), records.record("dp", failed="killed", seconds=7)]


@pytest.fixture(scope="module")
def text(made, others):
    """The page of all of them."""
    return page.page(suites_of(made), others, ["/a/<b>/record.json: not a readable record"])


@pytest.fixture
def without_pictures(monkeypatch):
    """Pages of words and tables alone, which are quicker."""
    monkeypatch.setattr(Study, "figures", lambda self, result: {})


class Checker(HTMLParser):
    """Collects tags, attributes, ids, and whether every tag is closed in order."""

    def __init__(self):
        super().__init__()
        self.stack, self.ids, self.links, self.tags = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]
        self.links += [value for name, value in attributes if name in ("href", "src", "xlink:href", "action")]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


@pytest.fixture(scope="module")
def parsed(text):
    """The page, parsed."""
    checker = Checker()
    checker.feed(text)
    return checker


def test_one_file_that_reaches_for_nothing(text, parsed):
    assert parsed.stack == [] and "script" not in parsed.tags
    assert all(link.startswith("#") or link == "data:," for link in parsed.links)
    without_namespaces = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert not re.search(r"https?://|@import|url\((?!#)", without_namespaces)
    assert 'name="viewport" content="width=device-width' in text


def test_ids_are_there_once_and_every_reference_has_its_id(text, parsed):
    assert len(parsed.ids) == len(set(parsed.ids))
    used = [link[1:] for link in parsed.links if link.startswith("#")] + re.findall(r"url\(#([^)]+)\)", text)
    assert set(used) <= set(parsed.ids)


def test_the_answer_comes_before_everything_else(text, made):
    """And whether it was fair and undisturbed; statistics, certificate and environment are folded below."""
    newest = text[text.index('<section id="compare-20260102-030405-0002"') :].partition("</section>")[0]
    assert text.index("<section ") == text.index(newest)
    words = ("Which mode is fastest here", "fair: ", "Whether other processes disturbed", "use single",
             "How much faster? Every pair", "Suite compare", "What holds the step back", "Throughput, every round",
             "Statistics and tables", "Ratio of throughput, paired by round", "Parity certificate",
             "Environment")  # fmt: skip
    places = [plain(newest).index(each) for each in words]
    assert places == sorted(places)
    assert "<table" in newest and "<table" not in re.sub(r"<details>.*?</details>", "", newest, flags=re.DOTALL)
    said = plain(text)
    assert "preview: n = 3" not in said and "preview: n = 2, no interval and no verdict" in said


def test_a_pair_is_stated_in_one_direction_with_one_interval(text, newest):
    """In the box, in the picture and in the tables, whatever is the faster of the two."""
    checked = 0
    for suite in (each for each in newest if each.study in ("compare", "replay")):
        result = study_of(suite).result(suite)
        section = plain(text[text.index(f'<section id="{suite.id}"') :].partition("</section>")[0])
        for pair in result.pairs:
            a, b = re.escape(pair.a), re.escape(pair.b)
            assert not re.search(rf"(?<!\S){a} (is \S+ % (faster|slower) than|/|vs) {b}(?!\S)", section), (
                pair.sentence()
            )
            said = set(re.findall(rf"(?<!\S){b} is (\S+ % (?:faster|slower)) than {a}(?!\S)", section))
            assert len(said) <= 1 and all(f"is {each} than" in pair.sentence() for each in said)
            checked += len(said)
    assert checked >= 2


def test_the_advice_is_first_and_is_of_the_newest_comparison(text):
    first = plain(text.partition('<section id="')[2].partition("</section>")[0])
    assert "use single: one process, one device" in first and "Suite compare-20260102-030405-0002" in first
    for words in (
        "do not distribute: ddp, the fastest distributed mode, is slower",
        "the largest part of its step is computation",
        "make predict mode",
    ):
        assert words in first


def test_without_a_comparison_there_is_no_advice(without_pictures):
    said = page.page([records.suite("breakdown", records.breakdown_programs(), rounds=2)], [], [])
    assert 'id="advice"' not in said


def test_each_study_is_there_with_its_pictures(parsed, text, newest):
    assert {suite.study for suite in newest} == set(STUDIES)
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    for suite in newest:
        study = study_of(suite)
        section = text[text.index(f'id="{suite.id}"') :]
        drawn = study.figures(study.result(suite))
        labels = [f'<figure aria-label="{study.heading}: {name.replace("-", " ")}">' for name in drawn]
        assert drawn and all(label in section for label in labels), suite.id
        assert study.card or study.heading_of(suite) in headings
    places = {suite.study: text.index(f'id="{suite.id}"') for suite in newest}
    assert sorted(places, key=places.get) == list(STUDIES)
    assert parsed.tags.count("svg") == parsed.tags.count("figure")


def test_only_the_newest_of_a_kind_is_shown_in_full(text):
    assert text.count("<h2>Comparison</h2>") == 1
    newest, older = (f"compare-20260102-030405-{n}" for n in ("0002", "0001"))
    assert f'id="{newest}"' in text and f'id="{older}"' not in text
    assert f"{older}: single, dp, ddp, horovod, independent; n = 3; CPU only" in plain(text)


@pytest.mark.usefixtures("without_pictures")
def test_a_full_suite_is_not_replaced_by_a_quick_one():
    programs = records.compare_programs()
    suites = [records.suite("compare", programs, rounds=n, name=f"000{i}") for i, n in enumerate((8, 9, 2), start=1)]
    text = page.page(suites, [], [])
    assert f'id="{suites[1].id}"' in text and text.count("<h2>Comparison</h2>") == 1
    assert "preview:" not in text.partition("Other suites")[0]
    assert all(f"{suites[i].id}: single" in text.partition("Other suites")[2] for i in (0, 2))
    assert f'id="{suites[2].id}"' in page.page(suites[2:], [], [])
    labels = {"suite": "compare-20260102-030405-0009", "program": "ddp", "round": 0, "profile": True, "seconds": 9e6}
    nothing = suites_of([records.record("ddp", **labels)])  # not one whole round
    assert f'id="{suites[2].id}"' in page.page(suites[2:] + nothing, [], [])
    for n in (1, 2):
        alone = plain(page.page([records.suite("weak", records.scaling_programs("weak"), rounds=n)], [], []))
        assert f"preview: n = {n}, no interval and no verdict" in alone


@pytest.mark.usefixtures("without_pictures")
def test_other_machines_and_numbers_of_devices_are_other_subjects():
    suites = [records.suite("compare", records.compare_programs(), rounds=3, name="0001")]
    suites += [records.suite("compare", records.compare_programs(4), rounds=3, name="0002")]
    suites += [records.suite("compare", records.compare_programs(), rounds=3, name="0003", device="cuda")]
    text = page.page(suites, [], [])
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert len(headings) == 3 and all(f'id="{suite.id}"' in text for suite in suites)
    assert "Comparison (2 CPU workers, Test(R) Processor 3.0, 2 cores)" in headings
    assert any(heading.startswith("Comparison (2 GPUs, Test GPU 80GB") for heading in headings)
    assert len({page.subject(suite) for suite in suites}) == 3


def test_suites_without_one_good_record_are_on_the_page():
    labels = {"suite": "compare-20260102-030405-000f", "program": "ddp"}
    found = [records.record("ddp", failed="killed", round=n, seconds=n, **labels) for n in range(2)]
    assert suites_of(found) == []
    said = plain(page.page([], found, []))
    assert "compare-20260102-030405-000f: no whole round; 0 of 2 runs ended well" in said
    assert said.count("rank 0 was killed") == 2


@pytest.mark.usefixtures("without_pictures")
def test_a_suite_of_profiled_runs_alone_is_refused_and_still_told():
    runs = []
    for day in (1, 2):
        labels = {"study": "breakdown", "suite": f"breakdown-1-000{day}", "round": 0, "profile": True}
        runs += [records.record(m, program=m, seconds=86400 * day + i, **labels) for i, m in enumerate(("dp", "ddp"))]
    old, new = suites_of(runs)
    said = page.line_of(old)
    assert not old.programs and said.startswith(f"{old.id}: no whole round, profiled dp, ddp; n = 0")
    assert [name for name, _ in page.section(new)["commands"]] == ["dp, profiled", "ddp, profiled"]
    assert study_of(new).repeat(new).startswith("make profile GPUS=2 ROUNDS=1")
    said = plain(page.page([old, new], [], []))
    assert "Refused: " in said and old.id in said and "dp, profiled: make bench" in said


@pytest.mark.usefixtures("without_pictures")
def test_dps_copies_are_in_the_answer():
    spans = [{"lane": "dp", "name": n, "start_s": 0.01 * i, "end_s": 0.01 * i + 0.001 * (i + 1), "bytes": None}
             for i, n in enumerate(("scatter", "replicate", "forward", "gather"))]  # fmt: skip
    found = records.suite_records("breakdown", records.breakdown_programs(), rounds=3)
    one = {"step": 9, "step_s": 0.05, "spans": spans, "notes": []}
    found.append(records.record("dp", profile=True, timeline=one, suite=found[0].label.suite, program="dp", round=0))
    said = plain(page.page(suites_of(found), [], []))
    assert re.search(
        r"dp: \d+ ms per step; scatter 1 ms, replicate 2 ms, gather 4 ms \(of one step under a profiler", said
    )


def replayed(mode: str = "ddp", base: str = "ddp", **unfair) -> Suite:
    """A replay of this unfairness; of none, the control."""
    programs = {
        "unfair": {"mode": mode, "variant": "unfair", **unfair},
        "fair": {"mode": mode, "variant": "fair"},
        "base": {"mode": base, "variant": "base"},
    }
    return records.suite(
        "replay", {f"{part}: {options['mode']}": options for part, options in programs.items()}, rounds=2
    )


def test_the_notes_of_a_study_are_those_of_its_result(monkeypatch):
    study, suite = STUDIES["replay"], replayed()
    assert study.notes(suite) == []
    monkeypatch.setattr(study.module, "notes", lambda suite: ["a note"], raising=False)
    assert study.notes(suite) == ["a note"]


@pytest.mark.usefixtures("without_pictures")
def test_the_control_of_the_replays_is_called_nothing():
    suite, study = replayed(), STUDIES["replay"]
    assert study.about(suite) == "nothing" and "REPLAY=nothing" in study.repeat(suite)
    assert study.question_of(suite) in plain(page.page([suite], [], []))


@pytest.mark.parametrize(("name", "mode", "unfair"), [
    ("item-sync", "ddp", {"item_sync": True}),
    ("horovod-fp16", "horovod", {"compression": "fp16"}),
    ("ddp-barrier", "ddp", {"step_barrier": True}),
])  # fmt: skip
def test_a_replay_is_known_by_what_its_unfair_version_sets(name, mode, unfair):
    assert STUDIES["replay"].about(replayed(mode, "dp", **unfair)) == name


@pytest.mark.usefixtures("without_pictures")
def test_a_sweep_says_what_its_base_is_and_what_chance_does():
    said = plain(page.page([records.suite("knobs", records.knob_programs(), rounds=3)], [], []))
    assert "ddp: the settings of the run, all the engine's defaults." in said
    assert "12 settings compared, each at 95 %" in said


@pytest.mark.usefixtures("without_pictures")
def test_a_sweep_of_training_options_says_what_it_found_and_how_to_repeat_it():
    suite = records.suite("knobs", records.format_programs(), rounds=3)
    said = plain(page.page([suite], [], []))
    assert "Knobs: single" in said and "faster than single" in said
    assert "no timed step has any of it" in said
    assert study_of(suite).repeat(suite).startswith("make sweep GPUS=1 ROUNDS=3 MODE=single ")
    assert "PRECISION" not in study_of(suite).repeat(suite) and "COMPILE" not in study_of(suite).repeat(suite)


def test_single_runs_are_side_by_side_with_model_and_data():
    """A bar for each program of a workload, no interval and no verdict; what each trained is in the table."""
    runs = [records.record(mode, throughput, seconds=at) for at, (mode, throughput) in
            enumerate([("dp", 80.0), ("ddp", 100.0), ("ddp", 110.0)])]  # fmt: skip
    runs += [records.record("ddp", 30.0, seconds=9, model="alexnet", image_size=64)]
    section = page.page([], runs, []).partition("<h2>Single runs</h2>")[2]
    said = plain(section)
    assert section.count("<figure") == 1 and "Single runs: one run each, no interval, no verdict" in said
    assert "ddp, 2 devices 2 runs" in said and "dp, 2 devices" in said and "alexnet" in said.partition("started")[0]
    assert re.search(r"mode model data devices .* ddp alexnet digits 64 px 2 ", said)
    assert "faster" not in said and "95 %" not in said
    assert all(record.command in said for record in runs)


def test_what_failed_and_what_was_refused_is_shown(text):
    said = plain(text)
    assert "Failed runs" in said and "rank 0 was killed" in said
    assert "/a/<b>/record.json: not a readable record" in said and "/a/&lt;b&gt;/record.json" in text


def test_it_says_where_it_was_measured_and_how_to_repeat_it(text, newest):
    said = plain(text)
    assert "2 CPU workers stand for 2 devices" in said and "Test(R) Processor 3.0" in said
    assert "0123456789abcdef0123456789abcdef01234567" in said
    for suite in newest:
        assert study_of(suite).repeat(suite) in said
        for program in suite.programs.values():
            assert f"{program.label}: {program.first.command}" in said


def test_the_answer_of_each_study_is_there(text, newest):
    said = plain(text)
    for suite in newest:
        study = study_of(suite)
        lines = study.answer(study.result(suite))
        assert lines and all(in_one_line(line) in said for line in lines), suite.id


@pytest.mark.usefixtures("without_pictures")
def test_suites_of_two_engines_knobs_are_both_shown():
    programs = {"horovod": {"mode": "horovod"}, "horovod fusion_mb=1": {"mode": "horovod", "throughput": 99.0}}
    suites = [records.suite("knobs", each, rounds=3) for each in (programs, records.knob_programs())]
    text = page.page(suites, [], [])
    assert "<h2>Knobs: ddp</h2>" in text and "<h2>Knobs: horovod</h2>" in text
    assert "none of 1 settings is shown to be faster" in text


@pytest.mark.usefixtures("without_pictures")
def test_an_unfair_comparison_is_flagged_before_the_answer():
    programs = records.compare_programs()
    programs["dp"]["item_sync"] = True
    said = page.page([records.suite("compare", programs, rounds=2)], [], [])
    flag = "NOT A FAIR COMPARISON: extra work per step"
    assert said.index(f'class="flag">{flag}') < said.index('<div class="answer">')
    assert "(not a fair comparison)" in said
    assert re.search(f"<caption>[^<]*{flag}", said)


@pytest.mark.usefixtures("without_pictures")
def test_one_round_has_no_verdict():
    said = plain(page.page([records.suite("compare", records.compare_programs(), rounds=1)], [], []))
    assert "a preview, no interval" in said and "preview, no verdict" in said
    assert "faster than" not in said


def test_a_suite_of_different_workloads_is_refused_and_the_others_are_shown():
    mixed = {"ddp": {"mode": "ddp"}, "horovod": {"mode": "horovod", "model": "resnet34"}}
    suites = [records.suite("compare", mixed, rounds=2), records.suite("replay", SMALL, rounds=2)]
    text = page.page(suites, [], [])
    assert "Refused: " in text and "model is resnet18 and resnet34" in plain(text)
    assert plain(text).count("Refused: ") == 1 and f'id="{suites[1].id}"' in text and "<svg" in text


SMALL = records.replay_programs()


@pytest.mark.usefixtures("without_pictures")
def test_without_a_suite_it_says_how_to_get_one():
    said = plain(page.page([], [records.record("ddp")], []))
    assert "No comparison is among these records" in said and "make compare GPUS=2" in said
    assert "One run each, no interval, no verdict" in said


@pytest.mark.usefixtures("without_pictures")
def test_rounds_that_are_not_whole_are_told():
    found = records.suite_records("compare", records.compare_programs(), rounds=4)
    found[-1] = records.record("independent", failed="hung", suite=found[0].label.suite, round=3)
    said = plain(page.page(suites_of(found), [], []))
    assert "4 runs of repeated or incomplete rounds do not count" in said and "1 runs failed" in said
    assert "rank 0 was hung" in said and "n = 3 interleaved rounds" in said


def test_what_records_say_cannot_break_out_of_the_page():
    programs = {'<img src="x">': {"mode": "ddp"}, "</svg><b>": {"mode": "horovod"}}
    text = page.page([records.suite("compare", programs, rounds=2)], [], ["<script>alert(1)</script>"])
    assert "<script" not in text and "<img" not in text and "<b>" not in text


def test_it_is_written_whole_or_not_at_all(tmp_path, made, monkeypatch):
    path = page.write_page(suites_of(made)[:1], [], [], tmp_path / "new" / "report.html")
    before = path.read_text()
    assert before.startswith("<!DOCTYPE html>") and before.rstrip().endswith("</html>")
    monkeypatch.setattr(page, "page", lambda *a: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        page.write_page([], [], [], path)
    assert path.read_text() == before and [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_the_same_records_give_the_same_page(made, others):
    suites = suites_of(made)[:1]
    assert page.page(suites, others, []) == page.page(suites, others, [])


def test_a_thousand_records_are_reported_within_ten_seconds(tmp_path):
    """Read, checked, compared, drawn and written: ten comparisons of a hundred records each."""
    found = []
    for n in range(10):
        found += records.suite_records("compare", records.compare_programs(), rounds=20, name=f"{n + 1:04x}")
    assert len(found) == 1000
    folder = records.store(tmp_path / "runs", found)
    page.page([records.suite("replay", SMALL, rounds=2)], [], [])  # matplotlib is loaded, its fonts are found
    began = time.process_time()
    read, refused = find_records(folder)
    page.write_page(suites_of(read), [], refused, tmp_path / "report.html")
    taken = time.process_time() - began
    assert len(read) == 1000 and not refused
    assert taken < 10.0  # a fast core takes 2, a slow one 4


@pytest.mark.parametrize("study", ["compare", "weak", "breakdown", "knobs", "replay"])
def test_a_disturbed_suite_is_grey_labelled_and_without_verdict_or_advice(study):
    programs = {
        "compare": records.compare_programs(), "weak": records.scaling_programs("weak"),
        "breakdown": records.breakdown_programs(), "knobs": records.knob_programs(),
        "replay": records.replay_programs(),
    }[study]  # fmt: skip
    made = records.suite_records(study, programs, rounds=4)
    made = made[:-1] + records.loaded(made[-1:], 0.41)
    text = page.page(suites_of(made), [], [])
    said = plain(text)
    assert "Disturbed: other processes took 41 % of the CPU" in said
    assert f'<section id="{made[0].label.suite}" class="grey">' in text
    assert not re.search(r"\d % (faster|slower) than", said) and "use single" not in said and "distribute:" not in said
    if study == "compare":
        assert "No recommendation: the runs were disturbed" in said
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert pictures and all("DISTURBED, no verdict" in plain(picture) for picture in pictures)
    colours = {tuple(each[i : i + 2] for i in (0, 2, 4)) for p in pictures for each in re.findall("#([0-9a-f]{6})", p)}
    assert all(len(set(channels)) == 1 for channels in colours), colours


def test_an_older_suite_that_was_not_disturbed_stays_in_full(without_pictures):
    quiet = records.suite_records("compare", records.compare_programs(), rounds=8, name="0001")
    later = records.loaded(records.suite_records("compare", records.compare_programs(), rounds=8, name="0002"), 0.41)
    text = page.page(suites_of(quiet + later), [], [])
    assert f'<section id="{quiet[0].config.label.suite}">' in text and "use single" in plain(text)
    assert "n = 8; disturbed; " in plain(text.partition("Other suites")[2])
