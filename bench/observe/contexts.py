"""The GPUs on which a process has a CUDA context. Each takes hundreds of MiB there, even if it is not used."""

import socket
from typing import ClassVar

import torch

from bench.observe.loads import LoadedWeights
from bench.observe.probe import Probe, Unheard


def contexts_of(parts: list[dict]) -> dict:
    """By rank: own, the GPUs that the model is on; extra, others on which the process has a context; current, torch's
    current device; loaded, the GPUs on which torch.load put tensors. together: ranks whose models are on one GPU of
    several."""
    places = {}
    for rank, part in enumerate(parts):
        for place in part["places"] if part["gpus"] > 1 else ():
            places.setdefault(place, []).append(rank)
    together = next((ranks for ranks in places.values() if len(ranks) > 1), [])
    by_rank = {key: [part[key] for part in parts] for key in ("own", "extra", "current", "loaded")}
    return by_rank | {"together": together}


class Contexts(Probe):
    """This process's contexts at the end of the training: one that was made stays."""

    joins: ClassVar = {"contexts": contexts_of}
    silent: ClassVar = {"contexts": "no GPU is used"}

    def part(self) -> dict:
        model = self.watch.model
        if model is None or not torch.cuda.is_initialized():
            return {}
        own = {tensor.device.index for tensor in (*model.parameters(), *model.buffers()) if tensor.is_cuda}
        own |= {torch.device("cuda", each).index for each in getattr(model, "device_ids", None) or ()}
        if not own:
            return {}
        if not hasattr(torch._C, "_cuda_hasPrimaryContext"):
            return {"contexts": Unheard("this torch does not say on which GPUs a process has a context")}
        gpus = torch.cuda.device_count()
        extra = {index for index in range(gpus) if torch._C._cuda_hasPrimaryContext(index)} - own
        uuids = [str(torch.cuda.get_device_properties(index).uuid) for index in own]
        return {"contexts": {
            "gpus": gpus,
            "places": [f"{socket.gethostname()} {uuid}" for uuid in uuids],
            "own": sorted(own),
            "extra": sorted(extra),
            "current": torch.cuda.current_device(),
            "loaded": sorted(self.watch.probe(LoadedWeights).loads.devices - own),
        }}  # fmt: skip
