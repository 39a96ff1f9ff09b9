"""The forecast of published tables: a made-up one worked out by hand, and what the committed files must have."""

import pytest

from tests.validation import published_models
from tests.validation.forecast import published
from tests.validation.forecast.__main__ import main
from tests.validation.pages import forecast_published

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


def test_the_committed_models_are_torchvisions():
    for name in published_models.PIXELS:
        assert (published.FOLDER / "models" / f"{name}.csv").read_text() == published_models.text_of(name)


def test_the_command_leaves_its_picture(folder, capsys):
    assert main([str(folder), "--published"]) == 2  # without tables
    assert capsys.readouterr().err.count("\n") == 1
    table(folder, ALONE, FOUR.format(10))
    assert main([str(folder), "--published"]) == 0 and "made-up" in capsys.readouterr().out
    assert sorted(path.name for path in (folder / "pictures").iterdir()) == ["published-fitted.svg", "published.svg"]


def test_a_fit_has_only_the_rows_of_one_node(folder):
    """What was published for several nodes has no part in its prediction."""
    two = 'P,tiny,horovod,cycle_time_ms=1,fp32,30,G,2,2,,"10mbit,0us",none,"1gbit,0us",19\n'
    found = [published.learned(table(folder, ALONE, two, FOUR.format(speed)), folder) for speed in (10, 20)]
    assert [row.given for rows in found for row in rows] == [(1, 2)] * 2
    predicted = [rows[0].row.images_per_s * (1 + getattr(rows[0], end)) for rows in found
                 for end in ("low", "off", "high")]  # fmt: skip
    assert predicted[:3] == pytest.approx(predicted[3:]) and predicted[:3] == sorted(predicted[:3])


@pytest.mark.parametrize(("rows", "given"), [
    (((two := 'P,tiny,ddp,,fp32,30,G,2,2,,,,"1gbit,0us",19\n'),
      'P,tiny,ddp,,fp32,30,G,4,2,slow,"1gbit,0us",tcp,"1gbit,0us",34\n'), (2,)),  # no row of one device
    (('P,tiny,ddp,,fp32,30,G,1,1,,,,,10\n', 'P,tiny,ddp,,fp32,30,G,4,1,slow,"1gbit,0us",tcp,,34\n'), (1,)),
    ((ALONE, two, FOUR.format(30)), (1,)),  # two are runs in another mode
])  # fmt: skip
def test_a_table_may_begin_with_a_node_or_have_a_device_in_each(rows, given, folder):
    (found,) = published.learned(table(folder, *rows), folder)
    assert found.given == given and found.low < found.off < found.high < found.linear_off + 0.2


def test_fitted_to_one_node_most_rows_of_several_are_nearer_than_by_linear_scaling():
    found = forecast_published.learned()
    assert len(found) == len([row for each in published.read() for row in each.rows if row.nodes > 1])
    median, worst, linear, better, covered, _ = published.figures_of(found)
    assert median < 5 and worst < 30 and median < linear / 2 and better >= 80 and covered >= 85
