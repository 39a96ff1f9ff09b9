"""Made-up profiles of one device, of which every forecast can be worked out by hand, and records that hold them."""

import dataclasses
import json
from pathlib import Path

from bench.predict.step.profile import Profile, Tensor
from tests import records

MB = 10**6
# Two blocks of 10 MB each: backward has the second's gradient in its middle, and the first's at its end.
TENSORS = (Tensor("a.weight", (2500, 1000), "a", 0.0, 2.0), Tensor("b.weight", (2500, 1000), "b", 0.5, 1.0))
PROFILE = Profile("made-up", "made up", "no machine", "cpu", "images", 32, 1.0, 2.0, 0.5, 0.5, (1.0,), TENSORS, ())
GPU = dataclasses.replace(PROFILE, device="cuda")


def data(mode: str = "single", num_devices: int = 1, device: str = "cpu", profile: bool = True, **options) -> dict:
    """The content of a record, which has a profile of three steps."""
    made = records.record(mode, num_devices=num_devices, device=device, **options)
    found = json.loads(json.dumps(made.data))
    if profile:
        rows = [
            {"name": tensor.name, "shape": list(tensor.shape), "dtype": "float32", "block": tensor.block,
             "needed_s": [tensor.needed_s] * 3, "ready_s": [tensor.ready_s] * 3}
            for tensor in TENSORS
        ]  # fmt: skip
        found["samples"][0]["profile"] = {"forward_s": [1.0] * 3, "backward_s": [2.0] * 3, "parameters": rows,
                                          "buffers": [{"dtype": "float32", "bytes": 400}]}  # fmt: skip
    return found


def record(folder: Path, change=None, **options) -> Path:
    """A run's folder with such a record. change: done to its data before it is written."""
    found = data(**options)
    if change:
        change(found)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record.json").write_text(json.dumps(found))
    return folder
