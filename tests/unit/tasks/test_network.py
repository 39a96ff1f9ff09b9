"""`bench network`: what is asked for, what a rank measures, its record, and what is made of made-up times."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bench import __main__ as cli
from bench.analysis import drawing, tables
from bench.cli.actions import network
from bench.config.options import RunConfig
from bench.errors import UserError
from bench.measure import nvml
from bench.record.read import find_records
from bench.record.schema import BadRecord
from bench.report import page
from bench.tasks.network import record as network_record
from bench.tasks.network import result
from bench.tasks.network.plan import SIZES, Plan, as_flag, parse_sizes
from bench.tasks.network.rank import BLOCK_S, MOST_IN_A_ROW, Operation, check, first_pass, supported
from bench.tasks.network.record import find
from bench.tasks.network.result import Series, series_of
from tests import networks, records
from tests.networks import ALPHA, BETA
from tests.shown import in_one_line, plain, printed, text_of
from tests.validation.pages import reference_page


@pytest.mark.parametrize("text", [SIZES, "8,12KiB", "4KiB,16KiB,64KiB,100KiB", "4KiB-100KiB", "1GiB"])
def test_sizes_are_written_as_they_are_read(text):
    assert parse_sizes(as_flag(parse_sizes(text))) == parse_sizes(text)


MANY = ",".join(str(4 * n) for n in range(1, 50))
NO_SIZES = [f"--sizes={text}" for text in ("large", "4KiB,", "-4", "1e6", "6", "0", "9GiB", "1MiB-4KiB", MANY)]


@pytest.mark.parametrize("words", [*NO_SIZES, "--gpus=1", "--backends=mpi", "--backends=nccl", "--repeats=0",
                                   "--repeats=9999", "--max-minutes=0", "--max-minutes=soon"])  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_line(words, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(nvml, "visible_gpus", list)
    assert cli.main(["network", f"--out={tmp_path}", words]) == 2
    error, (name, value) = capsys.readouterr().err, words[2:].split("=")
    assert name.upper().replace("-", "_") in error and error.count("\n") == 1
    assert name == "sizes" or value in error
    assert list(tmp_path.iterdir()) == []


def test_horovod_is_left_out_with_its_reason_where_it_is_not(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(nvml, "visible_gpus", list)
    asked = RunConfig(num_devices=2)
    assert list(network.chosen(tables.terminal(), asked, None)) == ["gloo"]
    assert "`bench install-horovod`" in in_one_line(capsys.readouterr().out)
    with pytest.raises(UserError, match="BACKENDS=horovod"):
        network.chosen(tables.terminal(), asked, "horovod")


@pytest.mark.parametrize(("share", "backends"), [
    (False, {"gloo": "cpu", "nccl": "cuda", "horovod": "cuda"}), (True, {"gloo": "cuda"}),
])  # fmt: skip
def test_on_gpus_gloo_is_measured_between_cpus_and_nccl_between_gpus(share, backends, monkeypatch):
    """But where ranks share a GPU: there Gloo carries what is on it, and NCCL is none."""
    monkeypatch.setattr(network, "choose_device", lambda config: "cuda")
    monkeypatch.setattr(network, "resolve_here", lambda config: config)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    no_sharing = lambda config: "no" if config.share_gpu else ""  # noqa: E731
    monkeypatch.setattr("bench.launch.engines.horovodrun.unavailable_reason", no_sharing)
    found = network.chosen(tables.terminal(), RunConfig(num_devices=2, device="cuda", share_gpu=share), None)
    assert {name: config.device for name, config in found.items()} == backends and found["gloo"].mode == "ddp"


LINK = (1e-4, 1e-7)  # of 10 MB/s
MODE = SimpleNamespace(gather=lambda item: [item], topology=SimpleNamespace(rank=0, device=torch.device("cpu")))
OPERATION = Operation("all_reduce", [0], None, [1.0])


def passed(budget_s: float, sizes: str = "4KiB-4MiB"):
    """How often in a row each size is to be timed, and what is omitted."""
    plan = Plan(parse_sizes(sizes), 10, budget_s)
    return first_pass(OPERATION, MODE, plan, lambda tensor, times: LINK[0] + LINK[1] * tensor.nbytes)


def test_small_messages_are_timed_in_blocks_and_large_ones_alone():
    blocks, left_out = passed(600.0)
    assert left_out == [] and list(blocks) == list(parse_sizes("4KiB-4MiB"))
    assert blocks[2**12] == pytest.approx(BLOCK_S / (LINK[0] + LINK[1] * 2**12), abs=1) and blocks[2**22] == 1
    assert passed(600.0, "4,8")[0][4] == MOST_IN_A_ROW


def test_what_does_not_fit_into_the_time_is_left_out_with_all_that_is_larger():
    """Twelve of 1 MiB take 1.3 s, twelve of 4 MiB 5 s."""
    blocks, left_out = passed(5.0)
    assert max(blocks) == 2**20 and [size["bytes"] for size in left_out] == [2**22]
    assert left_out[0]["expected_s"] == pytest.approx(LINK[1] * 2**22, rel=0.01)
    blocks, left_out = passed(0.001)
    assert list(blocks) == [2**12] and len(left_out) == 5  # one is always measured


def test_a_sum_that_is_none_is_an_error():
    """Nothing is timed that does not do what it is to do."""
    check(OPERATION, torch.ones(4), 0)
    check(OPERATION, torch.zeros(4), 1)  # a rank that takes no part
    with pytest.raises(RuntimeError, match="all_reduce of 16 bytes"):
        check(OPERATION, torch.full((4,), 2.0), 0)
    gather = Operation("all_gather", [0, 1], None, [1.0, 2.0], parts=2)
    scatter = Operation("reduce_scatter", [0, 1], None, [None, 3.0], parts=2)  # on rank 1
    check(gather, torch.tensor([1.0, 1.0, 2.0, 2.0]), 0)
    check(scatter, torch.tensor([9.0, 9.0, 3.0, 3.0]), 1)
    for operation in (gather, scatter):
        with pytest.raises(RuntimeError, match=f"{operation.name} of 16 bytes"):
            check(operation, torch.tensor([1.0, 1.0, 2.0, 3.0]), 1)


def test_a_gathered_tensor_is_rounded_up_to_a_part_for_each_rank():
    sizes = [Operation("all_gather", [], None, [], parts=3).elements(nbytes) for nbytes in (4, 12, 4096)]
    assert sizes == [3, 3, 1026] and OPERATION.elements(4096) == 1024


def test_an_operation_that_the_backend_does_not_have_is_named_and_another_error_is_none():
    def refused(why: str):
        def once(tensor):
            raise RuntimeError(why)

        return Operation("reduce_scatter", [0], once, [1.0])

    works = Operation("all_reduce", [0], lambda tensor: None, [1.0])
    why = "ProcessGroupGloo does not support reduce_scatter"
    assert supported([works, refused(why)], MODE) == ([works], {"reduce_scatter": why})
    with pytest.raises(RuntimeError, match="connection"):
        supported([refused("connection closed by peer")], MODE)
    made = networks.data()
    said = result.answer([networks.checked(made | {"unsupported": {"reduce_scatter": why}}, Path("made-up"))])
    assert sum("reduce-scatter" in line and why in line for line in said) == 1


def stored(folder: Path, *made: dict) -> Path:
    for each in made:
        (run := folder / each["config"]["suite"] / each["run_id"]).mkdir(parents=True)
        (run / "network.json").write_text(json.dumps(each))
    return folder


def test_records_are_found_by_suite_and_are_no_runs(tmp_path):
    asked = ((2, "gloo"), (2, "horovod"), (1, "gloo"))
    stored(tmp_path, *(networks.data(backend=backend, number=number) for number, backend in asked))
    run = records.record("ddp")
    records.store(tmp_path / "run", [run])
    found, refused = find(tmp_path)
    suites = network_record.by_suite(found)
    assert refused == [] and [len(group) for group in suites.values()] == [1, 2]
    assert [network_record.place_of(group).name for group in suites.values()] == list(suites)
    assert [record.run_id for record in find_records(tmp_path)[0]] == [run.run_id]


@pytest.mark.parametrize(("change", "said"), [
    (lambda data: data.pop("operations"), "operations"),
    (lambda data: data.update(network_version=9), "9"),
    (lambda data: data["operations"][0]["sizes"][0]["seconds"][0].pop(), "round"),
    (lambda data: data["operations"][1]["sizes"][0]["seconds"].pop(), "rank"),
    (lambda data: data["operations"][1]["sizes"][0]["seconds"][0].__setitem__(0, -1.0), "1e-09"),
    (lambda data: data["operations"][1]["sizes"].reverse(), "order"),
    (lambda data: data["nodes"][0]["ranks"].append(7), "rank"),
    (lambda data: data["load"].pop(), "load"),
    (lambda data: data["topology"].update(world_size=1), "world_size"),
])  # fmt: skip
def test_a_record_that_was_edited_or_cut_is_refused_by_name(change, said, tmp_path):
    change(data := networks.data())
    (path := tmp_path / "network.json").write_text(json.dumps(data))
    with pytest.raises(BadRecord, match=said) as error:
        network_record.load(path)
    assert str(path) in str(error.value) and find(tmp_path) == ([], [str(error.value)])


def series(name: str, **made) -> Series:
    (found,) = [s for s in series_of([networks.record(**made)]) if s.operation.name == name]
    return found


@pytest.mark.parametrize(("name", "ranks", "factor"), [
    ("ping_pong", 2, 1), ("all_reduce", 2, 1), ("all_reduce", 5, 1), ("all_gather", 5, 2), ("reduce_scatter", 2, 3),
])  # fmt: skip
def test_alpha_and_beta_of_exact_times_are_those_that_made_them(name, ranks, factor):
    """Of a message there and back as of a ring: what is fitted are the links, and not the operation."""
    fit = series(name, ranks=ranks, noise=0.0, gathers=True).fit
    assert fit.alpha == pytest.approx((factor * ALPHA,) * 3) and fit.beta == pytest.approx((factor * BETA,) * 3)
    assert abs(fit.off) < 1e-9


def test_the_intervals_cover_the_truth_as_often_as_they_say():
    """Ten rounds: the exact interval of a median has 97.9 %. Noise of 10 % on sizes over five decades."""
    trials, missed = 200, {"alpha": 0, "beta": 0}
    for seed in range(trials):
        fit = series("all_reduce", ranks=3, rounds=10, noise=0.1, seed=seed).fit
        for name, (_, low, high), true in (("alpha", fit.alpha, ALPHA), ("beta", fit.beta, BETA)):
            missed[name] += not low <= true <= high
    assert all(count / trials < 0.05 for count in missed.values()), missed


def test_bandwidths_are_of_the_median_time_and_turn_its_interval_round():
    found = series("all_reduce", ranks=4)
    times = found.operation.times[-1]
    (middle, low, high), bus = found.bandwidths(times)
    seconds = sorted(times.seconds)
    assert middle == pytest.approx(times.nbytes / ((seconds[4] + seconds[5]) / 2))
    assert (low, high) == pytest.approx((times.nbytes / seconds[-2], times.nbytes / seconds[1]))
    assert bus == pytest.approx((1.5 * middle, 1.5 * low, 1.5 * high))  # 2 (4 - 1) / 4
    for name in ("all_gather", "reduce_scatter"):
        found = series(name, ranks=4, gathers=True)
        algorithm, bus = found.bandwidths(found.operation.times[-1])
        assert bus == pytest.approx([0.75 * bandwidth for bandwidth in algorithm])


def test_the_peak_of_a_device_is_the_slowest_one_s_at_its_best_size():
    found = networks.record(gathers=True)
    assert result.best_products(found)["fp32"] == (1024, pytest.approx([2 * 1024**3 / 1e-3, 2 * 1024**3 / 2e-3]))
    assert "fp32 1.07" in result.peak_line(found) and "1.07 to 2.15" in printed(*result.grids([found]))
    assert "matrix products" not in " ".join(result.answer([networks.record()]))  # an older record


def test_a_message_one_way_takes_half_of_there_and_back_and_what_is_no_line_is_known():
    found = series("ping_pong", noise=0.0)
    assert found.operation.times[0].seconds == pytest.approx([ALPHA + BETA * 4096] * 10)
    assert "83.3 [83.3 to 83.3] µs" in result.speed_line(found)
    made = networks.data(noise=0.0)
    for size in made["operations"][1]["sizes"][4:]:  # as where a cache ends
        size["seconds"] = [[4 * s for s in column] for column in size["seconds"]]
    bent = networks.checked(made, Path("made-up"))
    assert abs(series_of([bent])[1].fit.off) > 0.1 > abs(found.fit.off)


def test_few_rounds_have_no_interval_and_two_sizes_no_line():
    found = networks.record(rounds=5, sizes="4KiB,16KiB")
    assert all(s.fit is None and s.seconds(s.operation.times[0])[1:] == (None, None) for s in series_of([found]))
    assert all(grid.rows for grid in result.grids([found]))


def test_what_is_said_names_every_backend_the_units_and_what_was_left_out():
    found = networks.both(left_out=(2**26, 2**28))
    said, table = "\n".join(result.answer(found)), printed(*result.grids(found))
    for words in ("Gloo", "Horovod over Gloo", "s per byte", "64 MiB, 256 MiB", "MAX_MINUTES"):
        assert words in said, words
    assert "16 MiB" in table and "64 MiB" not in table
    assert result.repeat(found) == (
        "make network GPUS=2 DEVICE=cpu SIZES=4KiB-256MiB REPEATS=10 MAX_MINUTES=5 BACKENDS=gloo,horovod"
    )


def test_the_page_shows_the_newest_of_each_network_and_an_older_one_as_a_line():
    older, newer = networks.both(number=1), networks.both(number=2)
    slow = networks.both(number=3, label="a slow link", beta=80e-9)
    text = page.page([], [], [], [*older, *newer, *slow])
    headings = [part.partition("</h2>")[0] for part in text.split("<h2>")[1:]]
    assert ["one machine" in heading for heading in headings] == [True, False, False] and "a slow link" in headings[1]
    assert text.count("<svg") == 2 and older[0].suite in plain(text) and "make network GPUS=2" in text


def test_the_picture_says_where_what_how_sure_and_whether_it_was_disturbed():
    made = {"ranks": 4, "nodes": ("n1", "n2"), "label": "a label"}
    assert result.provenance_lines([networks.record(**made)])[0] == "4 processes, 2 nodes × 2 devices (n1, n2), a label"
    assert result.disturbed([networks.record()]) == []
    said = text_of(result.draw(networks.both(label="a slow link", others=0.5)))
    for words in ("2 processes, a slow link", "Gloo, all-reduce: alpha", "ns per byte", "Horovod over Gloo", "n = 10",
                  "CPU only", "50 %"):  # fmt: skip
        assert words in said, words


def test_pictures_and_the_reference_page_of_a_folder(tmp_path, capsys):
    """There may be nothing else in it."""
    stored(tmp_path, *(record.data for record in networks.both()))
    assert cli.main(["report", str(tmp_path), "--format=plots"]) == 0
    (picture,) = tmp_path.glob("*/pictures/network.svg")
    assert capsys.readouterr().out.strip() == str(picture)
    assert picture.read_text() == drawing.svg_of(result.draw(networks.both()))  # from JSON and back: the same bytes
    (section,) = reference_page.networks(tmp_path)
    assert "## Network: 2 processes of one machine\n" in section and "](network-2026" in section
