"""Horovod for TensorFlow: eager mode, tf.function, and sessions of tf.compat.v1.

Example::

    import horovod.tensorflow as hvd

    hvd.init()
    with tf.GradientTape() as tape:
        loss = ...
    tape = hvd.DistributedGradientTape(tape)
    ...
    hvd.broadcast_variables(model.variables, root_rank=0)   # after the first step
"""

from typing import Any

try:
    import tensorflow as _tf
except ImportError as _error:
    raise ImportError(
        f"horovod.tensorflow needs TensorFlow, which cannot be imported ({_error}); install it with: pip install "
        "tensorflow"
    ) from _error
from horovod import _absent
from horovod import _core as _native  # noqa: F401  (fail here if the native engine cannot be imported)
from horovod.common.objects import rank0_first
from horovod.common.training_loop.evaluation import Metric, gather_for_metrics
from horovod.tensorflow import functions as _functions
from horovod.tensorflow import gradients as _gradients  # noqa: F401
from horovod.tensorflow import mpi_ops as _mpi_ops
from horovod.tensorflow.calls import _allreduce
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import *  # noqa: F403
from horovod.tensorflow.mpi_ops import *  # noqa: F403
from horovod.tensorflow.util import _executing_eagerly, refs_to_vars, vars_to_refs

_LegacyOptimizer = _tf.compat.v1.train.Optimizer
"""Class that ``_DistributedOptimizer`` wraps; other software imports both."""

# Public names that are imported lazily, because their modules import Keras or are rarely used.
_LAZY = {
    "DistributedGradientTape": "gradient_tape",
    "DistributedOptimizer": "optimizer",
    "LocalGradientAggregationHelper": "gradient_aggregation",
    "PartialDistributedGradientTape": "gradient_tape",
    "SyncBatchNormalization": "sync_batch_norm",
    "_DistributedOptimizer": "optimizer",
    "check_in_sync": "functions",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "elastic":
        return importlib.import_module(f"{__name__}.elastic")
    if name not in _LAZY:
        raise _absent.no_attribute(__name__, name)
    value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    "Compression",
    "Metric",
    "_LegacyOptimizer",
    "_allreduce",
    "_executing_eagerly",
    "gather_for_metrics",
    "rank0_first",
    "refs_to_vars",
    "vars_to_refs",
    *_LAZY,
    *_functions.__all__,
    *_mpi_ops.__all__,
]
