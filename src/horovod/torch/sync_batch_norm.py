"""Batch normalization over the combined batch of all ranks.

Each rank sends its count, mean and sum of squared deviations. Unlike sums of squares, these combine without
cancellation (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
1979).
"""

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from horovod.common.frontends import TORCH as frontend
from horovod.common.ops import Sum
from horovod.torch.ops.allgather import allgather
from horovod.torch.ops.allreduce import allreduce


class SyncBatchNorm(_BatchNorm):
    """Batch normalization that uses the statistics of all ranks' batches during training.

    The input has shape (batch, num_features, ...) and a floating-point dtype. Parameters and buffers are those of
    ``torch.nn.BatchNorm2d``. All ranks must call these layers the same number of times and in the same order. The
    batches can differ in size. In evaluation mode, or in a job of one process, the layer is plain batch normalization.
    It can be differentiated twice. If the combined batch has no values, the statistics do not change.

    Args:
        num_features (int): Number of channels, the size of dimension 1.
        eps (float): Value added to the variance. Default: 1e-5.
        momentum (float, optional): Weight of the new value in the running statistics; None for a cumulative average.
            Default: 0.1.
        affine (bool): Learn a scale and a shift per channel. Default: True.
        track_running_stats (bool): Keep running statistics for evaluation. Default: True.

    Raises:
        ValueError: If the input has fewer than 2 dimensions, another dtype or another number of features, or all ranks
            together have only one value per channel.
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
            raise ValueError(f"SyncBatchNorm: the input must have at least 2 dimensions, got {input.dim()}")
        if input.shape[1] != self.num_features:
            raise ValueError(f"SyncBatchNorm: the input must have {self.num_features} features, got {input.shape[1]}")
        if not input.is_floating_point():
            dtype = str(input.dtype).removeprefix("torch.")
            raise ValueError(f"SyncBatchNorm: the input's dtype must be a floating-point one, got {dtype}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize the input. In training mode, also update the running statistics.

        Args:
            input (torch.Tensor): Tensor of shape (batch, num_features, ...).

        Returns:
            torch.Tensor: Tensor of the same shape and dtype.

        Raises:
            ValueError: If the ranks together have only one value for each channel.
        """
        self._check_input_dim(input)
        if not self.training or frontend.require_job().size == 1:
            return _BatchNorm.forward(self, input)
        # For 16-bit input, use float32 for the statistics and for everything computed from them.
        mean, variance, total = _statistics(_widened(input.detach()))
        if total == 1:
            raise ValueError("SyncBatchNorm: all ranks together must have at least 2 values for each channel, got 1")
        if total:
            _track(self, mean, variance, total)
        return _Normalise.apply(input, self.weight, self.bias, mean, variance, max(total, 1.0), self.eps)


@torch.no_grad()
def _track(layer: _BatchNorm, mean: torch.Tensor, variance: torch.Tensor, total: float) -> None:
    if not layer.track_running_stats or layer.running_mean is None or layer.running_var is None:
        return
    assert layer.num_batches_tracked is not None
    layer.num_batches_tracked.add_(1)
    momentum = 1.0 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
    unbiased = variance * (total / (total - 1))
    layer.running_mean.mul_(1 - momentum).add_(mean.to(layer.running_mean.dtype), alpha=momentum)
    layer.running_var.mul_(1 - momentum).add_(unbiased.to(layer.running_var.dtype), alpha=momentum)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    """Convert a tensor to the dtype used for statistics: float64 stays float64, and all other floats become float32."""
    return tensor.double() if tensor.dtype is torch.float64 else tensor.float()


def _per_channel(vector: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return vector.view(1, -1, *([1] * (like.dim() - 2)))


def _over_channels(wide: torch.Tensor) -> torch.Tensor:
    """Sum a tensor over all dimensions except the channel dimension."""
    return wide.sum([d for d in range(wide.dim()) if d != 1])


@torch.no_grad()
def _statistics(wide: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return the combined batch's mean and variance, and its number of values per channel."""
    channels = wide.shape[1]
    count = wide.numel() // max(channels, 1)
    mean = _over_channels(wide) / max(count, 1)
    squares = _over_channels((wide - _per_channel(mean, wide)).square())
    gathered = allgather(torch.cat([wide.new_full((1,), count), mean, squares]).unsqueeze(0))
    counts, means, all_squares = gathered.split([1, channels, channels], dim=1)
    total = float(counts.sum())
    mean = (counts * means).sum(0) / max(total, 1.0)
    variance = (all_squares + counts * (means - mean).square()).sum(0) / max(total, 1.0)
    return mean, variance, total


def _recompute_normalized(
    wide: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, total: float, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Recompute the normalized input and the inverse standard deviation in a backward pass.

    For a second derivative (``create_graph=True``), autograd must record how these two results depend on every rank's
    input. They are therefore computed from the input again. The values are the same up to rounding.

    Returns:
        The normalized input and the inverse standard deviation.
    """
    if torch.is_grad_enabled():
        mean = allreduce(_over_channels(wide), op=Sum) / total
        variance = allreduce(_over_channels((wide - _per_channel(mean, wide)).square()), op=Sum) / total
    inverse = torch.rsqrt(variance + eps)
    return (wide - _per_channel(mean, wide)) * _per_channel(inverse, wide), inverse


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        input: torch.Tensor,
        weight: Any,
        bias: Any,
        mean: torch.Tensor,
        variance: torch.Tensor,
        total: float,
        eps: float,
    ) -> torch.Tensor:
        wide = _widened(input)
        output = (wide - _per_channel(mean, wide)) * _per_channel(torch.rsqrt(variance + eps), wide)
        if weight is not None:
            output = output * _per_channel(weight, wide) + _per_channel(bias, wide)
        ctx.save_for_backward(input, weight, mean, variance)
        ctx.total, ctx.eps = total, eps
        return output.to(input.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        input, weight, mean, variance = ctx.saved_tensors
        wide = gradient.to(mean.dtype)
        normal, inverse = _recompute_normalized(_widened(input), mean, variance, ctx.total, ctx.eps)
        of_bias = _over_channels(wide)
        of_weight = _over_channels(wide * normal)
        # The statistics depend on every rank's input, so sum over the combined batch. Keep the gradients of weight and
        # bias local, because the optimizer reduces them.
        sums = allreduce(torch.cat([of_bias, of_weight]), op=Sum) / ctx.total
        mean_gradient, mean_product = sums.chunk(2)
        of_input = wide - _per_channel(mean_gradient, wide) - normal * _per_channel(mean_product, wide)
        scale = inverse if weight is None else inverse * weight
        of_input = (of_input * _per_channel(scale, wide)).to(gradient.dtype)
        if weight is None:
            return of_input, None, None, None, None, None, None
        return of_input, of_weight.to(weight.dtype), of_bias.to(weight.dtype), None, None, None, None
