"""Batch normalization over the combined batch of all ranks, as a tf.keras layer.

Each rank sends its count, mean and sum of squared deviations. Unlike sums of squares, these combine without
cancellation (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
1979).

Operations are named independently of Keras' scopes, which contain numbers that depend on what a rank has created
before.
"""

from typing import Any

import tensorflow as tf

from horovod.common.frontends import TENSORFLOW as frontend
from horovod.common.ops import Sum
from horovod.tensorflow import gradients as _gradients  # noqa: F401
from horovod.tensorflow.calls import _allreduce, allgather
from horovod.tensorflow.reduction import on_the_wire, unused
from horovod.tensorflow.util import elastic

_BatchNormalization = tf.keras.layers.BatchNormalization
_LEGACY = hasattr(_BatchNormalization, "_calculate_mean_and_var")  # Keras 2


_NAME = "SyncBatchNormalization"


def joined_moments(x: tf.Tensor, axes: list[int], mask: Any = None, name: str = _NAME) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the mean and variance of ``x`` over all ranks, keeping the reduced dimensions ``axes`` with size 1.

    The results are float32, or float64 if ``x`` is. They are zero if all ranks' inputs are empty or masked. All ranks
    must make the same calls in the same order. The gradient is that of the sum of all ranks' losses.

    Args:
        x: Floating-point tensor; its shape may differ between ranks along ``axes``.
        axes: Dimensions to reduce.
        mask: Bool tensor with the shape of ``x`` without its last dimension, True for elements that count; None for
            all.
        name: Name of the operations, the same on all ranks.
    """
    wide = tf.cast(x, tf.float64 if x.dtype == tf.float64 else tf.float32)
    weights = tf.ones_like(wide)
    if mask is not None:
        weights *= tf.cast(mask, wide.dtype)[..., tf.newaxis]

    @tf.custom_gradient
    def moments(wide: tf.Tensor) -> Any:
        count = tf.reduce_sum(weights, axes, keepdims=True)
        own_mean = tf.math.divide_no_nan(tf.reduce_sum(wide * weights, axes, keepdims=True), count)
        squares = tf.reduce_sum(tf.square(wide - own_mean) * weights, axes, keepdims=True)
        own = tf.stack([count, own_mean, squares])[tf.newaxis]
        with tf.compat.v1.name_scope(None):
            gathered = allgather(own, unused(name))
        counts, means, all_squares = tf.unstack(gathered, axis=1)
        total = tf.reduce_sum(counts, 0)
        mean = tf.math.divide_no_nan(tf.reduce_sum(counts * means, 0), total)
        joined = tf.reduce_sum(all_squares + counts * tf.square(means - mean), 0)

        def gradient(of_mean: tf.Tensor, of_variance: tf.Tensor) -> tf.Tensor:
            # Sum the gradients of all ranks, because every rank's loss depends on the shared statistics.
            own = tf.stack([of_mean, of_variance])
            with tf.compat.v1.name_scope(None):
                summed = _allreduce(own, unused(f"{name}.gradient"), op=Sum)
            of_mean, of_variance = tf.unstack(summed)
            by_element = of_mean + 2.0 * of_variance * (wide - mean)
            return tf.math.divide_no_nan(by_element, total) * weights

        return (mean, tf.math.divide_no_nan(joined, total)), gradient

    return moments(wide)


def _alone() -> bool:
    return frontend.require_job().size == 1 and not elastic()


@tf.keras.utils.register_keras_serializable(package="horovod")
class SyncBatchNormalization(_BatchNormalization):
    """Batch normalization that uses the statistics of all ranks' batches during training.

    In inference, and in a job of one process, the layer behaves like ``tf.keras.layers.BatchNormalization``. The
    batches can differ in size. All ranks must call the layer the same number of times and in the same order.

    Args:
        fused (bool): Must be False, because TensorFlow's fused kernel cannot exchange statistics.
        **kwargs: Arguments of ``BatchNormalization``.

    Raises:
        ValueError: If ``fused`` is True.
    """

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused not in (False, None):
            raise ValueError(f"SyncBatchNormalization: fused must be False, got {fused!r}")
        super().__init__(**kwargs, **({"fused": False} if _LEGACY else {}))

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if _LEGACY or _alone():
            return super()._moments(inputs, *args, **kwargs)
        mask = args[0] if args else kwargs.get("mask")
        axes = list(self._reduction_axes)
        moments = joined_moments(inputs, axes, mask, self._on_the_wire())
        return tuple(tf.squeeze(tf.cast(part, inputs.dtype), axes) for part in moments)

    def _calculate_mean_and_var(self, inputs: Any, reduction_axes: list[int], keep_dims: bool, mask: Any = None) -> Any:
        # Keras 2 calls this method. Keras 3 does not.
        if _alone():
            return super()._calculate_mean_and_var(inputs, reduction_axes, keep_dims, mask=mask)
        moments = joined_moments(inputs, list(reduction_axes), mask, self._on_the_wire())
        parts = [tf.cast(part, inputs.dtype) for part in moments]
        return tuple(parts if keep_dims else (tf.squeeze(part, reduction_axes) for part in parts))

    def _on_the_wire(self) -> str:
        return f"{_NAME}/{on_the_wire(self.name)}"
