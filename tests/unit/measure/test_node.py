"""`bench/measure/node.py`: what a record says of this machine as one of several."""

import pytest

from bench.measure import node


@pytest.mark.parametrize(("limit", "speed"), [("100", 100.0), ("", None), ("0.1", 0.1)])
def test_a_link_of_namespaces_is_as_fast_as_its_limit(monkeypatch, limit, speed):
    """Their interfaces say 10 Gbit/s, whatever the limit is."""
    monkeypatch.setenv("BENCH_IFACE", "lo")
    monkeypatch.setenv("BENCH_LINK_MBIT", limit)
    assert node.link() == {"interface": "lo", "link_speed_mbit": speed}


def test_another_link_is_as_fast_as_its_interface_says(monkeypatch):
    monkeypatch.setenv("BENCH_IFACE", "eth7")
    monkeypatch.delenv("BENCH_LINK_MBIT", raising=False)
    stats = type("Stats", (), {"speed": 25000})
    monkeypatch.setattr("psutil.net_if_stats", lambda: {"eth7": stats})
    assert node.link() == {"interface": "eth7", "link_speed_mbit": 25000}
