"""`bench/measure/nvml.py`, read through the real pynvml from a made-up driver (`tests/stubs/nvml_stub.c`)."""

import subprocess
import sys

import pytest

LIST = "import json; from bench.measure import nvml; print(json.dumps([g.index for g in nvml.visible_gpus()]))"


def test_four_gpus_are_described(nvml_stub):
    code = """
import dataclasses, json
from bench.measure import nvml
print(json.dumps([nvml.nvml_state(), [dataclasses.asdict(g) for g in nvml.visible_gpus()], nvml.why_no_gpu()]))
"""
    (driver, reason), gpus, why = nvml_stub.run(code, total_mib=[81920, 40960])
    assert (driver, reason, why) == ("570.00.stub", None, None)
    assert [gpu["name"] for gpu in gpus] == [f"Stub GPU {i}" for i in range(4)]
    assert [gpu["memory_total_gib"] for gpu in gpus] == [80, 40, 40, 40]
    assert [gpu["pci_bus_id"] for gpu in gpus] == [f"00000000:{b}:00.0" for b in (10, 20, 30, 40)]
    assert gpus[1]["uuid"] == "GPU-b1111111-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("2,0", [2, 0]),  # the order is CUDA's: GPU 2 is cuda:0
        (" 1 , 3", [1, 3]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,-1,1", [0]),  # the list ends at the first entry that names no GPU
        ("1,9,2", [1]),
        ("1,1", []),  # a repeated entry leaves none
        ("GPU-d3333333-0000-0000-0000-000000000003,GPU-b1", [3, 1]),
        ("GPU-b1,GPU-b11", []),
        ("GPU-", []),  # names all four, so none
        ("MIG-a0000000-0000-0000-0000-000000000000", []),
    ],
)
def test_cuda_visible_devices(nvml_stub, visible, expected):
    assert nvml_stub.run(LIST, visible=visible) == expected


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"driver": "none"}, "no NVIDIA driver"),
        ({"driver": "ancient"}, "too old"),
        ({"init_error": 9}, "not loaded"),
        ({"init_error": 4}, "no permission"),
        ({"init_error": 15}, "NVML failed: GPU is lost."),
        ({"count": 0}, "lists no GPU"),
        ({"visible": ""}, "hides all 4 GPUs"),
        ({"visible": "MIG-1"}, "is not a MIG slice of this machine, which has no slices"),
    ],
)
def test_why_no_gpu_is_one_sentence(nvml_stub, environ, words):
    code = """
import json; from bench.measure import nvml
print(json.dumps([nvml.why_no_gpu(), nvml.visible_gpus(), nvml.open_device(position=0)[0]]))
"""
    why, gpus, _ = nvml_stub.run(code, **environ)
    assert words in why and why.endswith(".") and gpus == []


def test_without_the_python_package(nvml_stub):
    code = """
import json, sys; sys.modules["pynvml"] = None
from bench.measure import nvml
print(json.dumps([nvml.nvml_state(), nvml.visible_gpus()]))
"""
    (driver, reason), gpus = nvml_stub.run(code)
    assert driver is None and "nvidia-ml-py" in reason and gpus == []


FIGURES = """
import json, os; from bench.measure import nvml
def ask(gpu):
    d, _ = nvml.open_device(uuid=gpu.uuid)
    return {
        "figures": [d.used_bytes(), d.process_bytes(os.getpid()), d.utilization_percent(), d.power_w()],
        "energy": d.energy_j(), "reserved": d.used_includes_reserved, "reasons": d.reasons,
    }
print(json.dumps([ask(gpu) for gpu in nvml.visible_gpus()]))
"""
MIB = 2**20


def test_each_gpu_has_its_own_figures(nvml_stub):
    gpus = nvml_stub.run(
        FIGURES,
        used_mib=[11, 22, 33, 44],
        processes=["0:self:1", "1:self:2", "1:77:900", "2:self:3", "3:self:4"],
        utilization=[1, 2, 3, 4],
        power_mw=[1000, 2000, 3000, 4000],
    )
    assert [g["figures"] for g in gpus] == [[11 * MIB * i, MIB * i, i, float(i)] for i in (1, 2, 3, 4)]
    assert all(g["energy"] > 0 and g["reasons"] == {} and not g["reserved"] for g in gpus)


CLOCKS = """
import json; from bench.measure import nvml
d = [nvml.open_device(uuid=gpu.uuid)[0] for gpu in nvml.visible_gpus()]
print(json.dumps([[x.sm_clock_mhz(), x.throttle_reasons(), x.processes(), x.reasons] for x in d]))
"""


def test_clocks_why_they_are_held_down_and_who_computes(nvml_stub):
    settings = {"sm_mhz": [1980, 1200], "throttle": [4, 32], "processes": ["0:77:1", "0:12:1", "1:5:1"], "count": 2}
    assert nvml_stub.run(CLOCKS, **settings) == [[1980, 4, [12, 77], {}], [1200, 32, [5], {}]]


def test_a_gpu_without_clocks_says_so(nvml_stub):
    ((clock, throttle, pids, reasons),) = nvml_stub.run(CLOCKS, unsupported=["clock", "throttle"], count=1)
    assert (clock, throttle, pids) == (None, None, [])
    assert all("not supported" in reasons[figure] for figure in ("clock", "throttle"))


def test_old_driver_gives_what_it_has(nvml_stub):
    gpus = nvml_stub.run(FIGURES, driver="old", used_mib=[1000], processes=["0:self:7"], visible="0")
    used, process, *_ = gpus[0]["figures"]
    assert used == 1500 * MIB and gpus[0]["reserved"]  # the first form adds the 500 MiB that the driver reserves
    assert process == 7 * MIB  # by the second form of the list
    assert gpus[0]["energy"] is None and "too old" in gpus[0]["reasons"]["energy"]


def test_process_that_the_driver_knows_by_another_number(nvml_stub):
    gpus = nvml_stub.run(FIGURES, processes=["0:4242:300"], visible="0")
    assert gpus[0]["figures"][1] is None and "container" in gpus[0]["reasons"]["process"]


def test_process_listed_without_its_memory(nvml_stub):
    gpus = nvml_stub.run(FIGURES, processes=["0:self:-1"], visible="0")
    assert gpus[0]["figures"][1] is None and "without its memory" in gpus[0]["reasons"]["process"]


def test_figures_that_the_gpu_does_not_give(nvml_stub):
    gpus = nvml_stub.run(FIGURES, unsupported=["power", "utilization"], visible="0")
    assert gpus[0]["figures"][2:] == [None, None]
    assert all("not supported" in gpus[0]["reasons"][figure] for figure in ("power", "utilization"))


def test_a_gpu_is_found_by_uuid_then_bus_then_position(nvml_stub):
    code = """
import json; from bench.measure import nvml
asked = [
    dict(uuid="c2222222-0000-0000-0000-000000000002", pci_bus_id="00000000:10:00.0", position=0),
    dict(uuid="99999999", pci_bus_id="00000000:20:00.0", position=0),
    dict(position=0),
    dict(uuid="99999999"),
]
found = [nvml.open_device(**a) for a in asked]
print(json.dumps([[device.name if device else None, remark] for device, remark in found]))
"""
    (by_uuid, by_bus, by_position, unknown) = nvml_stub.run(code, visible="3,0")
    assert by_uuid == ["Stub GPU 2", None] and by_bus == ["Stub GPU 1", None]
    assert by_position[0] == "Stub GPU 3" and "by its position" in by_position[1]
    assert unknown[0] is None and "knows no GPU" in unknown[1]


def test_import_is_quick_and_needs_neither_torch_nor_pynvml():
    """By the processor's time: other tests may be running."""
    code = """
import sys, time; t = time.process_time(); import bench.measure.nvml; took = time.process_time() - t
assert not {"torch", "pynvml"} & set(sys.modules), "imported too much"
assert took < 0.1, took
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- Lists of processes that are not what they seem ------------------------------------------------------------------

THREE = ["0:111:100", "0:222:200", "0:333:300"]


def test_drivers_that_garble_the_third_form_of_the_list_are_asked_for_the_second(nvml_stub):
    """535.54.03 is in many images. What the third form gives there has ids such as 0 and 4294967295."""
    settings = {"processes": THREE, "row_bytes": 32, "count": 1}
    ((*_, pids, reasons),) = nvml_stub.run(CLOCKS, version="535.54.03", **settings)
    assert pids == [111, 222, 333] and reasons == {}
    ((*_, pids, reasons),) = nvml_stub.run(CLOCKS, version="570.00", **settings)  # not known to do so
    assert pids is None and "no process has" in reasons["process"]
    ((*_, pids, _),) = nvml_stub.run(CLOCKS, version="535.54.03", processes=THREE, count=1)
    assert pids == [111, 222, 333]


def test_a_driver_that_lists_a_container_s_process_with_no_memory(nvml_stub):
    """Its list is right, and its figure is none."""
    ask = "import json, os; from bench.measure import nvml; d, _ = nvml.open_device(position=0)\n"
    found = "print(json.dumps([d.process_bytes(os.getpid()), os.getpid() in d.processes(), d.reasons]))"
    bytes_, listed, reasons = nvml_stub.run(ask + found, processes=["0:self:0", "0:77:0"])
    assert bytes_ is None and listed and "without its memory" in reasons["process"]


def test_wsl2_gives_no_list_of_processes(nvml_stub):
    ((clock, _, pids, reasons),) = nvml_stub.run(CLOCKS, unsupported=["list"], count=1)
    assert pids is None and "not supported" in reasons["process"] and clock == 1500


def test_a_gpu_that_is_lost_is_left_out_and_named(nvml_stub):
    code = """
import json; from bench.measure import nvml
print(json.dumps([[gpu.index for gpu in nvml.visible_gpus()], nvml.lost_gpus()]))
"""
    found, lost = nvml_stub.run(code, lost=[0, 1, 0])
    assert found == [0, 2, 3] and len(lost) == 1 and lost[0].startswith("GPU 1 cannot be used: ")


# --- MIG -------------------------------------------------------------------------------------------------------------

SLICES = """
import dataclasses, json; from bench.measure import nvml
visible = [dataclasses.asdict(gpu) for gpu in nvml.visible_gpus()]
device, _ = nvml.open_device(uuid="a0000000-0000-0000-0000-000000000000")  # the whole GPU's, as CUDA may tell it
print(json.dumps([visible, nvml.why_no_gpu(), device and device.uuid, device and device.used_bytes() // 2**20,
                  [gpu.uuid for whole in nvml.every_gpu() for gpu in nvml.slices_of(whole)]]))
"""
CUT = {"mig": [1, 0], "slices": [2], "count": 2, "slice_mib": 10240, "capability": 90}


def test_the_slices_of_a_gpu_are_listed_and_one_of_them_is_visible(nvml_stub):
    visible, why, _, used, slices = nvml_stub.run(SLICES, **CUT)
    assert [gpu["is_partitioned"] for gpu in visible] == [True, False] and why is None and used == 1000
    assert len(slices) == 2 and all(uuid.startswith("MIG-") for uuid in slices)
    (one,), why, opened, used, _ = nvml_stub.run(SLICES, visible=f"{slices[1]},{slices[0]}", **CUT)
    assert one["uuid"] == opened == slices[1] and one["is_slice"] and why is None
    assert one["memory_total_gib"] == 10 and one["compute_capability"] == "9.0" and used == 100


def test_a_slice_that_is_not_there_is_one_sentence(nvml_stub):
    visible, why, *_, slices = nvml_stub.run(SLICES, visible="MIG-77", **CUT)
    assert visible == [] and why.startswith("CUDA_VISIBLE_DEVICES=MIG-77: ") and all(uuid in why for uuid in slices)


# --- How GPUs are attached -------------------------------------------------------------------------------------------

TOPOLOGY = "import json; from bench.measure import nvml; print(json.dumps(nvml.topology()))"


def test_links_between_gpus_are_told(nvml_stub):
    found = nvml_stub.run(
        TOPOLOGY, count=3, visible="2,0,1", pcie_gen=[4, 3], pcie_max_gen=5, pcie_width=[16, 8], nvlinks=[18, 18, 0],
        ecc=[1, 0, -1], persistence=[1, 0], ancestor=50,
    )  # fmt: skip
    assert [gpu["index"] for gpu in found["gpus"]] == [2, 0, 1]
    last, first, second = found["gpus"]
    assert (first["pcie_generation"], first["pcie_generation_max"], first["pcie_width"]) == (4, 5, 16)
    assert (second["pcie_generation"], second["pcie_width"], second["pcie_width_max"]) == (3, 8, 16)
    assert [gpu["nvlinks"] for gpu in (first, second, last)] == [18, 18, 0]
    assert [gpu["ecc"] for gpu in (first, second, last)] == [True, False, None]
    assert [gpu["persistence"] for gpu in (first, second)] == [True, False]
    pairs = {tuple(pair["gpus"]): pair for pair in found["pairs"]}
    assert {pair: each["nvlink"] for pair, each in pairs.items()} == {(2, 0): False, (2, 1): False, (0, 1): True}
    assert all(pair["path"] == "SYS" and pair["peer_to_peer"] == "ok" for pair in pairs.values())


def test_what_the_driver_does_not_say_of_links_is_none(nvml_stub):
    found = nvml_stub.run(TOPOLOGY, count=2, unsupported=["links"])
    assert found["pairs"] == [{"gpus": [0, 1], "path": None, "peer_to_peer": None, "nvlink": None}]
    assert found["gpus"][0]["pcie_width"] is None and found["gpus"][0]["nvlinks"] == 0
    assert nvml_stub.run(TOPOLOGY, count=2, p2p=4)["pairs"][0]["peer_to_peer"] == "disabled"
    assert nvml_stub.run(TOPOLOGY, driver="none") is None
