"""MODE=independent: N processes that never exchange a gradient: the no-communication baseline, not a training.

Each process trains its own replica on its own share of the batches. No multi-process mode can be faster here; the
difference to ddp and horovod is the cost of their communication. With more processes than cores the bound also
falls, so that oversubscription is not attributed to a mode.

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
