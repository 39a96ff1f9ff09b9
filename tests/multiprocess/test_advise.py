"""`bench predict mode` with its own runs, at the smallest size, and again from the records that they left."""

import json

from bench.record.disturbance import THRESHOLDS
from bench.record.read import find_records
from tests.runs import SMALL, flags

MODEL = {"model": "gpt", "layers": 1, "width": 8, "heads": 1, "context": 8}  # steps of milliseconds
SIZE = {k: v for k, v in SMALL.items() if k not in ("baselines", "image_size")} | MODEL
ASKED = {"link": "10gbit,50us", "devices": 8, "price": 2, "examples": 1000}


def test_a_short_comparison_and_a_profile_give_advice_and_the_records_give_it_again(tmp_path, ranks):
    own = flags(**SIZE | ASKED | {"gpus": 2, "rounds": 1, "modes": "single,ddp"})
    result = ranks.bench("predict", "mode", *own, "--out", tmp_path, out=tmp_path).ok()
    (folder,) = tmp_path.iterdir()
    assert result.stdout.splitlines()[-1] == f"records: {folder}"
    records, refused = find_records(folder)
    modes = {(r.config.mode, r.config.profile) for r in records}  # a round that is disturbed is repeated
    assert not refused and modes == {("ddp", False), ("independent", False), ("single", False), ("single", True)}
    (profiled,) = (record for record in records if record.config.profile)
    assert profiled.samples[0].profile and profiled.config.per_device_batch == SIZE["batch"]
    for path in folder.rglob("record.json"):  # as on an idle machine
        data = json.loads(path.read_text())
        data["summary"]["disturbed_above"] = dict.fromkeys(THRESHOLDS, 1e9)
        path.write_text(json.dumps(data))
    again = ranks.bench("predict", "mode", "--records", folder, *flags(**ASKED)).ok()
    said = " ".join(again.stdout.split())
    assert all(words in said for words in ("predicted: single: ", "predicted: ddp: ", "ROUNDS=3")), said
