"""Batch normalisation over the joined batch of all ranks.

Each rank sends its count, mean and sum of squared deviations, which combine without the loss of digits that sums of
squares have (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
1979).
"""

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from horovod.common.faces import TORCH as face
from horovod.common.ops import Sum
from horovod.common.process_sets import global_process_set
from horovod.torch.ops.allgather import allgather
from horovod.torch.ops.allreduce import allreduce_


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation whose statistics in training are those of all ranks' batches together, which may differ in
    size.

    Input: (batch, num_features, ...). Arguments, parameters and buffers as in ``torch.nn.BatchNorm2d``. Every rank
    has to call it equally often, in the same order. In evaluation, and in a job of one process, it is plain batch
    normalisation. Raises ValueError for an input of fewer than 2 dimensions, with another number of features, or when
    all ranks together have one value for each channel only.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm: the input has {input.dim()} dimensions; accepted are 2 and more")
        if input.shape[1] != self.num_features:
            raise ValueError(
                f"SyncBatchNorm: the input has {input.shape[1]} features; accepted are {self.num_features}"
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalises ``input``; in training it also moves the running statistics."""
        self._check_input_dim(input)
        if not self.training or face.require_job().size == 1:
            return super().forward(input)
        output, mean, variance, total = _Normalise.apply(input, self.weight, self.bias, self.eps)
        self._track(mean, variance, total)
        return output

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, variance: torch.Tensor, total: torch.Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (total / (total - 1))
        self.running_mean.mul_(1 - momentum).add_(mean.to(self.running_mean.dtype), alpha=momentum)
        self.running_var.mul_(1 - momentum).add_(unbiased.to(self.running_var.dtype), alpha=momentum)


def _per_channel(vector: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return vector.view(1, -1, *([1] * (like.dim() - 2)))


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: Any, bias: Any, eps: float) -> Any:  # type: ignore[override]
        # 16-bit input has its statistics, and all that is computed from them, in float32.
        wide = input.double() if input.dtype is torch.float64 else input.float()
        dims = [d for d in range(wide.dim()) if d != 1]
        channels = wide.shape[1]
        count = wide.numel() // channels
        mean = wide.sum(dims) / max(count, 1)
        squares = (wide - _per_channel(mean, wide)).square().sum(dims)
        gathered = allgather(torch.cat([wide.new_full((1,), count), mean, squares]).unsqueeze(0))
        counts, means, all_squares = gathered.split([1, channels, channels], dim=1)
        total = counts.sum()
        if total <= 1:
            raise ValueError(
                "SyncBatchNorm: all ranks together have one value for each channel; accepted are 2 and more"
            )
        mean = (counts * means).sum(0) / total
        variance = (all_squares + counts * (means - mean).square()).sum(0) / total
        inverse = torch.rsqrt(variance + eps)
        normal = (wide - _per_channel(mean, wide)) * _per_channel(inverse, wide)
        output = normal
        if weight is not None:
            output = normal * _per_channel(weight, wide) + _per_channel(bias, wide)
        ctx.save_for_backward(normal, weight, inverse, total)
        ctx.mark_non_differentiable(mean, variance, total)
        return output.to(input.dtype), mean, variance, total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> Any:  # type: ignore[override]
        normal, weight, inverse, total = ctx.saved_tensors
        wide = gradient.to(normal.dtype)
        dims = [d for d in range(wide.dim()) if d != 1]
        of_bias = wide.sum(dims)
        of_weight = (wide * normal).sum(dims)
        # The statistics depend on every rank's input, so the sums over the joined batch enter; weight and bias get
        # local ones, which the optimizer reduces like any other gradient.
        sums = allreduce_(torch.cat([of_bias, of_weight]), op=Sum, process_set=global_process_set) / total
        mean_gradient, mean_product = sums.chunk(2)
        of_input = wide - _per_channel(mean_gradient, wide) - normal * _per_channel(mean_product, wide)
        scale = inverse if weight is None else inverse * weight
        of_input = (of_input * _per_channel(scale, wide)).to(gradient.dtype)
        if weight is None:
            return of_input, None, None, None
        return of_input, of_weight.to(weight.dtype), of_bias.to(weight.dtype), None
