"""MODE=independent: N processes that never exchange a gradient. Not training: the bound.

Each process trains its own replica on its own share of the batches. No multi-process mode can be faster here;
the distance of ddp and horovod from it is the price of their communication. With more processes than cores the bound
falls too, so that oversubscription is not blamed on a mode.

The process group serves only to start the clocks together and to collect the samples. What to notice: the only
method missing from ddp is ``wrap_model``, and with it everything that DDP is.
"""

from torch import nn

from bench.modes import collectives


class Mode(collectives.Mode):
    label = "no gradients are exchanged: a bound on speed, not a way to train"

    def sync_norms(self, model: nn.Module) -> nn.Module:
        return model  # each keeps its own

    def facts(self, optimizer):
        return {"gradient": "each process its own", "compression": "none", "buffers": "each rank's own"}
