"""Observation of training in ``fit`` (``horovod.common.training``)."""

import math
from typing import Any

from horovod.common.training import training

_WRAP = "compile the model with hvd.DistributedOptimizer(optimizer)"


def after_batch(model: Any) -> None:
    """Note the step of an optimizer that is not distributed."""
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if training.watched and optimizer is not None and not (hasattr(optimizer, "_hvd") or hasattr(inner, "_hvd")):
        # Two bytes a number: programs that average by themselves may send half the precision.
        training.plain_step(lambda: 2 * sum(math.prod(v.shape) for v in model.trainable_variables), _WRAP)
