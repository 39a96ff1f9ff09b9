"""Messages on the page and on the reference page: the newest of each network in full, and never in a table of runs."""

import json

from bench.analysis import drawing
from bench.cli.actions import plots
from bench.report import page
from bench.tasks.network import result
from tests import networks
from tests.shown import plain, text_of
from tests.validation.pages import reference_page


def test_the_newest_of_each_network_is_shown_and_an_older_one_is_a_line():
    older, newer = networks.both(number=1), networks.both(number=2)
    slow = networks.both(number=3, label="links limited to 100 Mbit/s", beta=80e-9)
    text = page.page([], [], [], [*older, *newer, *slow])
    headings = [part.partition("</h2>")[0] for part in text.split("<h2>")[1:]]
    assert headings == ["Network: 2 processes of one machine",
                        "Network: 2 processes, links limited to 100 Mbit/s", "Other suites"]  # fmt: skip
    assert text.count("<svg") == 2 and f"{older[0].suite}: messages; 2 processes of one machine; n = 10" in plain(text)
    assert "alpha = " in plain(text) and "make network GPUS=2" in text and "No comparison" not in text


def test_the_picture_says_where_what_and_how_sure():
    """And that it was disturbed, where it was."""
    said = text_of(result.draw(networks.both(label="links limited to 100 Mbit/s", others=0.5)))
    for words in ("2 processes, links limited to 100 Mbit/s", "Gloo, all-reduce: alpha",
                  "µs, beta", "ns per byte", "Horovod over Gloo", "n = 10 rounds", "CPU only",
                  "was disturbed: other processes took 50 %"):  # fmt: skip
        assert words in said, words


def test_pictures_and_the_reference_page_of_a_folder(tmp_path, capsys):
    """There may be nothing else in it."""
    for made in (record.data for record in networks.both()):
        (folder := tmp_path / made["config"]["suite"] / made["run_id"]).mkdir(parents=True)
        (folder / "network.json").write_text(json.dumps(made))

    class Asked:
        records = str(tmp_path)

    assert plots.run(Asked) == 0
    (picture,) = tmp_path.glob("*/pictures/network.svg")
    assert capsys.readouterr().out.strip() == str(picture)
    assert picture.read_text() == drawing.svg_of(result.draw(networks.both()))  # from JSON and back: the same bytes
    (section,) = reference_page.networks(tmp_path)
    assert "## Network: 2 processes of one machine\n" in section and "](network-2026" in section
    assert "None of 2 runs was disturbed by other processes." in section
