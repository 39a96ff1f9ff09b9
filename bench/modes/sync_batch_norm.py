"""NORM=sync: batch norm with the statistics of the global batch, in the modes of one process per device.

With 256 images on 8 devices a batch norm sees 32. NORM=sync makes its statistics those of all 256, so that N processes
compute the same as one process on the global batch. The cost: every layer waits for all ranks, twice in forward and
twice in backward, for a few hundred numbers each time. Gradients overlap with backward; these sums cannot.

On GPUs the library's own layer is used: ``nn.SyncBatchNorm`` or ``hvd.SyncBatchNorm``. Both take only GPU input, so on
CPUs the modes use ``ReducedBatchNorm2d``: the same mathematics written out.
"""

import functools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench.errors import UserError

LABEL = "batch norm over all ranks by ReducedBatchNorm2d of this benchmark (the libraries' layers take only GPU input)"


def synchronise(mode, model: nn.Module, gpu_layer, sum_over_ranks: Callable) -> nn.Module:
    """The model with batch norms over all ranks. sum_over_ranks: of ``ReducedBatchNorm2d``."""
    if mode.topology.device.type == "cuda":
        return replace_norms(model, gpu_layer)
    mode.add_label(LABEL)
    return replace_norms(model, functools.partial(ReducedBatchNorm2d, sum_over_ranks))


def replace_norms(model: nn.Module, layer: Callable[..., nn.Module]) -> nn.Module:
    """Replace every ``BatchNorm2d`` by ``layer(channels, eps, momentum, affine, track_running_stats)``, with the same
    tensors under the same names. Raises UserError for a batch norm of another class, which may do more."""
    for name, norm in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(norm, _BatchNorm):
            continue
        if type(norm) is not nn.BatchNorm2d:
            raise UserError(f"NORM=sync supports nn.BatchNorm2d, but {name} of this model is a {type(norm).__name__}: "
                            "use NORM=batch or another MODEL")  # fmt: skip
        synced = layer(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        synced._parameters, synced._buffers = norm._parameters, norm._buffers
        model.set_submodule(name, synced.train(norm.training))
    return model


class ReducedBatchNorm2d(nn.BatchNorm2d):
    """Batch norm with the mean and variance of all ranks' images. sum_over_ranks: a tensor -> its sum over all ranks,
    called equally often on every rank; the number of images may differ. Evaluation needs no communication."""

    def __init__(self, sum_over_ranks: Callable[[torch.Tensor], torch.Tensor], *arguments, **options):
        super().__init__(*arguments, **options)
        self.sum_over_ranks = sum_over_ranks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, channels, H, W]."""
        if not self.training:
            return super().forward(x)
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        mine = values.new_tensor([values.numel() / values.shape[1]])
        totals = SumOverRanks.apply(torch.cat([values.sum((0, 2, 3)), mine]), self.sum_over_ranks)  # [channels + 1]
        count = totals[-1].detach()  # values per channel, over all ranks
        mean = totals[:-1] / count
        # The deviations are summed once the mean is known. E[x²] - mean² would take one sum, and lose all digits where
        # the mean is large compared with the deviation.
        centred = values - mean[:, None, None]
        variance = SumOverRanks.apply(centred.square().sum((0, 2, 3)), self.sum_over_ranks) / count
        if self.track_running_stats:
            self.update_running(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        result = centred * (variance + self.eps).rsqrt()[:, None, None]
        if self.affine:
            result = result * self.weight[:, None, None] + self.bias[:, None, None]
        return result.to(x.dtype)

    def update_running(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """mean, variance (unbiased): [channels], of this batch."""
        self.num_batches_tracked += 1
        share = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


class SumOverRanks(torch.autograd.Function):
    """y = x_0 + … + x_{N-1}, on every rank. The backward pass sums the gradients of y over the ranks as well.

    Rank s's x goes into every rank's y, and so into every rank's loss: d(L_0 + … + L_{N-1})/dx_s = sum over r of
    dL_r/dy. With it backward gives each rank its share of the gradient of the SUM of the ranks' losses; ddp and horovod
    then take the mean over ranks: that is the gradient of (L_0 + … + L_{N-1}) / N, the mean over the joined batch.
    """

    @staticmethod
    def forward(ctx, x: torch.Tensor, sum_over_ranks) -> torch.Tensor:
        ctx.sum_over_ranks = sum_over_ranks
        return sum_over_ranks(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        return ctx.sum_over_ranks(gradient.contiguous()), None
