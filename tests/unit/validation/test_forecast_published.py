"""The forecast of published tables: a made-up one worked out by hand, and what the committed files must have."""

import pytest

from bench.files import PROJECT
from bench.report import markdown
from tests.validation import published_models
from tests.validation.forecast import published
from tests.validation.forecast.__main__ import main

MODEL = """# model: made up
# buffers: float32 400, int64 8
parameter,shape,multiplications
a.weight,1000x1000,100
a.bias,1000,0
b.weight,500x1000,300
"""
NAMES = "program,model,mode,options,precision,batch,device,devices,per_node,network,link,heads,inside,images_per_s\n"
HEAD = "".join(f"# {name}: words\n" for name in published.PARTS)
ALONE = "P,tiny,horovod,cycle_time_ms=1,fp32,30,G,1,2,,,,,10\n"  # a step of 3 s
FOUR = 'P,tiny,horovod,cycle_time_ms=1,fp32,30,G,4,2,slow,"10mbit,0us",none,"1gbit,0us",{}\n'


@pytest.fixture
def folder(tmp_path):
    """With a model; ``table`` writes a table there."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.csv").write_text(MODEL)
    return tmp_path


def table(folder, *rows: str):
    """The tables there, with one of these rows."""
    (folder / "made-up.csv").write_text(HEAD + NAMES + "".join(rows))
    return published.read(folder)


def test_a_step_is_divided_by_the_models_multiplications(folder):
    """3 s are 1 s forward and 2 s backward, of which a quarter is a's: the gradient of b is ready after 1.5 s."""
    (found,) = table(folder, ALONE)
    profile = published.profile_of(found.rows[0], folder)
    assert (profile.forward_s, profile.backward_s, profile.step_s) == pytest.approx((1.0, 2.0, 3.0))
    assert [tensor.needed_s for tensor in profile.tensors] == pytest.approx([0.0, 0.25, 0.25])
    assert [tensor.ready_s for tensor in profile.tensors] == pytest.approx([2.0, 1.5, 1.5])
    assert profile.nbytes == 4 * 1_501_000 and profile.buffers == (("float32", 400), ("int64", 8))


def test_a_row_of_many_devices_is_forecast_from_the_row_of_one(folder):
    """On four devices of two nodes a message goes 1.5 times over 1.25 MB/s. b's 2.004 MB with a's bias are ready 2.5 s
    after the step's beginning and take 2.4048 s; a's 4 MB wait for them and take 4.8: the step ends after 9.706 s."""
    (one,) = published.judged(table(folder, ALONE, FOUR.format(10)), folder)
    seconds = 4 * 30 / one.predicted
    assert seconds == pytest.approx(2.5 + 1.5 * 4 * 1_501_000 / 1.25e6, abs=0.002)
    assert one.off == pytest.approx(one.predicted / 10 - 1) and one.linear_off == pytest.approx(3.0)


def test_a_row_without_its_one_device_is_an_error(folder):
    with pytest.raises(ValueError):
        published.judged(table(folder, FOUR.format(10)), folder)
    with pytest.raises(ValueError):
        published.judged(table(folder, ALONE, ALONE, FOUR.format(10)), folder)


def test_every_row_is_shown_whatever_its_error(folder):
    found = published.judged(table(folder, ALONE, FOUR.format(10), FOUR.format(0.001), FOUR.format(10**6)), folder)
    assert len(published.grid(found).rows) == 3
    assert [row[:2] for row in published.summary(found).rows] == [["all", "3"], ["several nodes", "3"]]


def test_every_committed_table_says_where_it_is_from_and_is_forecast():
    """Three tables at least; each with all of its head, and a forecast of each row of many devices."""
    tables = published.read()
    assert len({found.head["source"] for found in tables}) >= 3
    for found in tables:
        assert set(found.head) == set(published.PARTS) and all(found.head.values())
        assert found.head["source"].startswith("https://")
    many = [row for found in tables for row in found.rows if row.devices > 1]
    assert len(published.judged(tables)) == len(many) > 20
    assert {row.nodes for row in many} > {1, 2, 4}


@pytest.mark.parametrize("name", list(published_models.PIXELS))
def test_the_committed_models_are_torchvisions(name):
    assert (published.FOLDER / "models" / f"{name}.csv").read_text() == published_models.text_of(name)


def test_the_command_prints_every_row_and_leaves_its_picture(folder, capsys):
    table(folder, ALONE, FOUR.format(10))
    assert main([str(folder), "--published"]) == 0
    said = capsys.readouterr().out
    assert "made-up" in said and "1 published row of 1 table:" in said
    assert sorted(path.name for path in (folder / "pictures").iterdir()) == ["published.svg"]


def test_a_folder_without_tables_is_refused_in_one_line(tmp_path, capsys):
    assert main([str(tmp_path), "--published"]) == 2
    error = capsys.readouterr().err
    assert "has no table of published throughput" in error and error.count("\n") == 1


def test_the_manual_has_a_row_for_each_row_of_the_files():
    text = (PROJECT / "tutorials" / "manual" / "forecast_validation.md").read_text()
    tables = published.read()
    for row in markdown.grid(published.grid(published.judged(tables))).splitlines()[2:]:
        assert row in text
    assert all(f"[{found.name}]({found.head['source']})" in text for found in tables)
