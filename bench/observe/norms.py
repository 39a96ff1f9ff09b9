"""The batch norms of a model: over how many images they normalise, and how far apart the ranks' statistics are."""

from collections import Counter
from typing import ClassVar

import numpy as np
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench.observe.probe import Probe
from bench.observe.together import finite
from bench.record.observed import norm_of as described


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """The batch norms that normalise with their batch: those in training mode. A frozen one is in evaluation mode."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and (m.training or m.running_mean is None)]


def norm_of(norms: list[nn.Module], images: int) -> dict:
    """``batch_norms`` described. images: that one layer sees at once.

    means, variances: [channels of all layers], the running statistics of this rank.
    """
    kinds = Counter(type(norm).__name__ for norm in norms)
    kept = [norm for norm in norms if norm.running_mean is not None]
    statistics = {
        name: np.concatenate([getattr(norm, f"running_{kind}").float().cpu().numpy() for norm in kept] or [np.zeros(0)])
        for name, kind in (("means", "mean"), ("variances", "var"))
    }
    return described(", ".join(f"{kind} × {n}" for kind, n in sorted(kinds.items())), images) | statistics


def norms_of(parts: list[dict]) -> dict:
    """disagreement: of the ranks' running means: the root mean square over all channels of the deviation over ranks,
    divided by the channel's mean running standard deviation."""
    norm = {name: value for name, value in parts[0].items() if name not in ("means", "variances")}
    means, variances = (np.stack([part[name] for part in parts]).astype(np.float64) for name in ("means", "variances"))
    if means.size:
        with np.errstate(all="ignore"):
            norm["disagreement"] = finite(np.sqrt((means.var(axis=0) / variances.mean(axis=0)).mean()))
    return norm


class Norms(Probe):
    """The batch norms that were in training mode in the first step."""

    joins: ClassVar = {"norm": norms_of}
    silent: ClassVar = {"norm": "no step was seen"}
    norms = None

    def trained(self, epoch) -> None:
        if self.norms is None and self.watch.model is not None:  # now the model is in training mode
            self.norms = batch_norms(self.watch.model)

    def part(self) -> dict:
        if self.norms is None or not self.watch.counts.images:
            return {}
        return {"norm": norm_of(self.norms, self.watch.counts.images // self.watch.devices)}
