"""`bench doctor` on GPUs that are not there: how they are attached, and whether one copies to the next."""

import re

import pytest

from bench.cli.actions import doctor

TORCH = """
import os, time
int32 = None

class cuda:
    device_count = staticmethod(lambda: 3)

class Tensor:
    def __init__(self, place="cpu", right=True):
        self.place, self.right = place, right

    def to(self, place):
        broken = os.environ["MADE_UP_COPIES"] if (self.place, place) == ("cuda:1", "cuda:2") else ""
        if broken == "hang":
            time.sleep(60)
        if broken == "fail":
            raise RuntimeError("CUDA error: peer access is not supported")
        return Tensor(place, self.right and broken != "wrong")

    cpu = lambda self: self.to("cpu")

arange = lambda count, dtype: Tensor()
equal = lambda one, other: one.right == other.right
"""


@pytest.mark.parametrize(
    ("copies", "words"),
    [
        ("right", None),
        ("wrong", "GPU 1 to 2.*NCCL_P2P_DISABLE=1"),
        ("hang", "0.5 s.*NCCL_P2P_DISABLE=1"),
        ("fail", "CUDA error: peer access is not supported"),
    ],
)
def test_copies_from_one_gpu_to_the_next_are_tried(tmp_path, monkeypatch, copies, words):
    """With a torch that stands for the real one."""
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("MADE_UP_COPIES", copies)
    if copies == "hang":
        monkeypatch.setattr(doctor, "PEER_LIMIT_S", 0.5)
    found = doctor.peer_problems([object()] * 3, {"gpus": 3})
    assert len(found) == (words is not None)
    assert all(re.search(words, sentence) and "\n" not in sentence for sentence in found), found


LINKS = """
import json; from bench.cli.actions import doctor; from bench.measure.environment import collect_machine
print(json.dumps(doctor.link_lines(collect_machine()["gpu_links"])))
"""


def test_how_gpus_are_attached_is_in_the_doctors_words(nvml_stub):
    one, other, *pairs = nvml_stub.run(
        LINKS, count=3, pcie_gen=4, pcie_width=[16, 16, 8], nvlinks=[12, 12, 0], ecc=[1, 1, -1], persistence=[1, 1, 0]
    )
    assert one.startswith("GPU 0, 1: ") and "PCIe 4 × 16" in one and "12 NVLinks" in one
    assert other.startswith("GPU 2: ") and "4 × 8" in other and "4 × 16" in other
    assert ["NVLink" in pair for pair in pairs] == [True, False] and "PHB" in pairs[1]
    assert doctor.link_lines(None) == []  # without a driver


PROBLEMS = """
from bench.cli.actions import doctor
def ask():
    found = doctor.find_problems(nvml.visible_gpus(), {"gpus": 0})
    return [sentence for sentence in found if "orovod" not in sentence]
"""
MACHINES = {"GPU 1 ": {"lost": [0, 1]}, "CUDA_VISIBLE_DEVICES=1,0": {"name": ["A40", "H100"], "visible": "1,0"}}


def test_what_stands_in_the_way_of_a_run_is_a_problem_for_the_doctor(nvml_stub):
    """Where a run would be refused: tests/unit/launch/test_gpu_hosts.py."""
    found = nvml_stub.each(PROBLEMS, list(MACHINES.values()))
    for words, sentences in zip(MACHINES, found, strict=True):
        assert sum(words in sentence for sentence in sentences) == 1, sentences
