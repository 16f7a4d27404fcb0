"""Checks of training in ``fit`` for common mistakes (``horovod.common.training``)."""

import math
from typing import Any

from horovod.common.training import training

_WRAP = "compile the model with hvd.DistributedOptimizer(optimizer)"


def after_batch(model: Any) -> None:
    """Record the step of an optimizer that is not distributed."""
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if training.watched and optimizer is not None and not (hasattr(optimizer, "_hvd") or hasattr(inner, "_hvd")):
        # Assume two bytes per number: programs that average by themselves may send half precision.
        training.plain_step(lambda: 2 * sum(math.prod(v.shape) for v in model.trainable_variables), _WRAP)
