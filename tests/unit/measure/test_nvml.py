"""`bench/measure/nvml.py`, read through the real pynvml from a made-up driver (`tests/stubs/nvml_stub.c`)."""

import subprocess
import sys

MIB = 2**20
GPUS = """
import dataclasses
def ask():
    gpus = [dataclasses.asdict(gpu) for gpu in nvml.visible_gpus()]
    slices = [gpu.uuid for whole in nvml.every_gpu() for gpu in nvml.slices_of(whole)]
    device, _ = nvml.open_device(uuid="a0000000-0000-0000-0000-000000000000")  # as CUDA may tell it, also of a slice
    return {"state": nvml.nvml_state(), "gpus": gpus, "why": nvml.why_no_gpu(), "lost": nvml.lost_gpus(),
            "slices": slices, "opened": device and [device.uuid, device.used_bytes() // 2**20]}
"""
DEVICES = """
def asked(gpu):
    d, _ = nvml.open_device(uuid=gpu.uuid)
    return {"used": d.used_bytes(), "process": d.process_bytes(os.getpid()), "utilization": d.utilization_percent(),
            "power": d.power_w(), "energy": d.energy_j(), "clock": d.sm_clock_mhz(), "throttle": d.throttle_reasons(),
            "pids": d.processes(), "reserved": d.used_includes_reserved, "reasons": d.reasons}
def ask():
    return [asked(gpu) for gpu in nvml.visible_gpus()]
"""


def test_four_gpus_are_described_and_one_that_is_lost_is_left_out_and_named(nvml_stub):
    found, three = nvml_stub.each(GPUS, [{"total_mib": [81920, 40960]}, {"lost": [0, 1, 0]}])
    assert found["state"] == ["570.00.stub", None] and found["why"] is None
    gpus = found["gpus"]
    assert [gpu["name"] for gpu in gpus] == [f"Stub GPU {i}" for i in range(4)]
    assert [gpu["memory_total_gib"] for gpu in gpus] == [80, 40, 40, 40]
    assert [gpu["pci_bus_id"] for gpu in gpus] == [f"00000000:{b}:00.0" for b in (10, 20, 30, 40)]
    assert gpus[1]["uuid"] == "GPU-b1111111-0000-0000-0000-000000000001"
    (lost,) = three["lost"]
    assert [gpu["index"] for gpu in three["gpus"]] == [0, 2, 3] and "GPU 1" in lost


VISIBLE = {
    None: [0, 1, 2, 3],
    "2,0": [2, 0],  # the order is CUDA's: GPU 2 is cuda:0
    " 1 , 3": [1, 3],
    "": [],
    "-1": [],
    "NoDevFiles": [],
    "0,-1,1": [0],  # the list ends at the first entry that names no GPU
    "1,9,2": [1],
    "1,1": [],  # a repeated entry leaves none
    "GPU-d3333333-0000-0000-0000-000000000003,GPU-b1": [3, 1],
    "GPU-b1,GPU-b11": [],
    "GPU-": [],  # names all four, so none
    "MIG-a0000000-0000-0000-0000-000000000000": [],
}


def test_cuda_visible_devices(nvml_stub):
    found = nvml_stub.each(GPUS, [{"visible": value} for value in VISIBLE])
    indices = [[gpu["index"] for gpu in each["gpus"]] for each in found]
    assert dict(zip(VISIBLE, indices, strict=True)) == VISIBLE


def test_why_no_gpu_is_another_sentence_for_each_cause(nvml_stub):
    rows = [*({"init_error": number} for number in (9, 4, 15)), {"count": 0}, {"visible": ""}, {"visible": "MIG-1"}]
    found = nvml_stub.each(GPUS, rows)
    code = "import json; from bench.measure import nvml\n" + GPUS + "print(json.dumps(ask()))"
    found += [nvml_stub.run(code, driver=driver) for driver in ("none", "ancient")]
    found += [nvml_stub.run('import sys; sys.modules["pynvml"] = None\n' + code)]
    whys = [each["why"] for each in found]
    assert len(set(whys)) == 9 and all(why.endswith(".") and "\n" not in why for why in whys)
    assert "4" in whys[4] and "MIG-1" in whys[5] and "nvidia-ml-py" in whys[8]
    assert all(each["gpus"] == [] and each["opened"] is None for each in found[:4] + found[6:])


def test_each_gpu_has_its_own_metrics(nvml_stub):
    processes = ["0:self:1", "1:self:2", "1:77:900", "2:self:3", "3:self:4", "0:12:1"]
    row = {"used_mib": [11, 22, 33, 44], "processes": processes, "utilization": [1, 2, 3, 4],
           "power_mw": [1000, 2000, 3000, 4000], "sm_mhz": [1980, 1200], "throttle": [4, 32]}  # fmt: skip
    (gpus,) = nvml_stub.each(DEVICES, [row])
    for number, gpu in enumerate(gpus, 1):
        assert (gpu["used"], gpu["process"]) == (11 * MIB * number, MIB * number)
        assert (gpu["utilization"], gpu["power"]) == (number, number)
        assert gpu["energy"] > 0 and gpu["reasons"] == {} and not gpu["reserved"]
        assert (gpu["clock"], gpu["throttle"]) == ((1980, 4) if number == 1 else (1200, 32))
    assert 12 in gpus[0]["pids"] and 77 in gpus[1]["pids"] and len(gpus[1]["pids"]) == 2


MISSING = {
    "clock,throttle": ({"unsupported": ["clock", "throttle"]}, {"clock", "throttle"}),
    "power,utilization": ({"unsupported": ["power", "utilization"]}, {"power", "utilization"}),
    "no list, as on WSL2": ({"unsupported": ["list"]}, {"process", "pids"}),
    "listed with no memory": ({"processes": ["0:self:-1"]}, {"process"}),
}


def test_what_the_driver_does_not_give_is_none_with_a_reason(nvml_stub):
    usual = {"visible": "0", "processes": ["0:self:7"]}
    rows = [usual | settings for settings, _ in MISSING.values()]
    for (gpu,), (name, (_, missing)) in zip(nvml_stub.each(DEVICES, rows), MISSING.items(), strict=True):
        assert {key for key, value in gpu.items() if value is None} == missing, name
        assert set(gpu["reasons"]) == missing - {"pids"}, name


def test_drivers_that_garble_the_third_form_of_the_list_are_asked_for_the_second(nvml_stub):
    """535.54.03 is in many images. What the third form gives there has ids such as 0 and 4294967295."""
    three = {"processes": ["0:111:100", "0:222:200", "0:333:300"], "count": 1}
    versions = [{"version": "535.54.03", "row_bytes": 32}, {"version": "535.54.03"}]
    unknown = {"version": "570.00", "row_bytes": 32}  # not known to do so
    found = nvml_stub.each(DEVICES, [three | each for each in (*versions, unknown)])
    assert [gpu["pids"] for (gpu,) in found] == [[111, 222, 333]] * 2 + [None]
    assert "process" in found[2][0]["reasons"]


def test_a_gpu_is_found_by_uuid_then_bus_then_position(nvml_stub):
    code = """
asked = [
    dict(uuid="c2222222-0000-0000-0000-000000000002", pci_bus_id="00000000:10:00.0", position=0),
    dict(uuid="99999999", pci_bus_id="00000000:20:00.0", position=0),
    dict(position=0),
    dict(uuid="99999999"),
]
def ask():
    found = [nvml.open_device(**each) for each in asked]
    return [[device and device.name, bool(remark)] for device, remark in found]
"""
    assert nvml_stub.each(code, [{"visible": "3,0"}]) == [
        [["Stub GPU 2", False], ["Stub GPU 1", False], ["Stub GPU 3", True], [None, True]]
    ]


def test_import_is_quick_and_needs_neither_torch_nor_pynvml():
    """By the processor's time: other tests may be running."""
    code = """
import sys, time; t = time.process_time(); import bench.measure.nvml; took = time.process_time() - t
assert not {"torch", "pynvml"} & set(sys.modules), "imported too much"
assert took < 0.1, took
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_slices_of_a_gpu_are_listed_and_one_of_them_is_visible(nvml_stub):
    cut = {"mig": [1, 0], "slices": [2], "count": 2, "slice_mib": 10240, "capability": 90}
    (whole,) = nvml_stub.each(GPUS, [cut])
    slices = whole["slices"]
    one, none = nvml_stub.each(GPUS, [cut | {"visible": visible} for visible in (f"{slices[1]},{slices[0]}", "MIG-77")])
    assert [gpu["is_partitioned"] for gpu in whole["gpus"]] == [True, False] and whole["why"] is None
    assert len(slices) == 2 and all(uuid.startswith("MIG-") for uuid in slices) and whole["opened"][1] == 1000
    (gpu,) = one["gpus"]
    assert gpu["uuid"] == slices[1] and gpu["is_slice"] and one["why"] is None and one["opened"] == [slices[1], 100]
    assert gpu["memory_total_gib"] == 10 and gpu["compute_capability"] == "9.0"
    assert none["gpus"] == [] and all(uuid in none["why"] for uuid in ("MIG-77", *slices))


def test_how_gpus_are_attached(nvml_stub):
    links = {"count": 3, "visible": "2,0,1", "pcie_gen": [4, 3], "pcie_max_gen": 5, "pcie_width": [16, 8],
             "nvlinks": [18, 18, 0], "ecc": [1, 0, -1], "persistence": [1, 0], "ancestor": 50}  # fmt: skip
    rows = [links, {"count": 2, "unsupported": ["links"]}, {"count": 2, "p2p": 4}]
    found, silent, disabled = nvml_stub.each("def ask(): return nvml.topology()", rows)
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
    assert silent["pairs"] == [{"gpus": [0, 1], "path": None, "peer_to_peer": None, "nvlink": None}]
    assert silent["gpus"][0]["pcie_width"] is None and silent["gpus"][0]["nvlinks"] == 0
    assert disabled["pairs"][0]["peer_to_peer"] == "disabled"
    code = "import json; from bench.measure import nvml; print(json.dumps(nvml.topology()))"
    assert nvml_stub.run(code, driver="none") is None
