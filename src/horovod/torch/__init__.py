"""Horovod for PyTorch.

Example::

    import horovod.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
"""

import importlib
from typing import Any

try:
    import torch as _torch  # noqa: F401
except ImportError as _error:
    raise ImportError(
        f"horovod.torch needs PyTorch, which cannot be imported ({_error}); install it with: pip install torch"
    ) from _error
from horovod import _absent
from horovod import _core as _native  # noqa: F401  (fail here if the native engine cannot be imported)
from horovod.common.objects import rank0_first
from horovod.common.training_loop.evaluation import Metric
from horovod.common.training_loop.weights import weight
from horovod.torch import elastic
from horovod.torch import monitoring as _noticing
from horovod.torch import mpi_ops as _mpi_ops
from horovod.torch.checkpoint import Sampler, load_checkpoint, save_checkpoint
from horovod.torch.evaluation import EvalSampler, compute_metric, gather_for_metrics
from horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    sync,
)
from horovod.torch.monitoring import check_in_sync
from horovod.torch.mpi_ops import *  # noqa: F403
from horovod.torch.ops import tracing as _tracing
from horovod.torch.ops.tensors import empty_shared, in_shared_memory
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.profiling import profile
from horovod.torch.sharded.optimizer import ShardedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm

_noticing.watch_plain_optimizers()
_tracing.exclude_from_compile()


_STRATEGIES = ("DiLoCo", "Gossip", "LocalSGD", "ParameterServer")


def __getattr__(name: str) -> Any:
    # Load this module lazily, because horovod.strategies imports horovod.torch and would create an import cycle.
    if name in _STRATEGIES:
        return getattr(importlib.import_module("horovod.strategies.tensors"), name)
    raise _absent.no_attribute(__name__, name)


__all__ = [
    "DistributedOptimizer",
    "EvalSampler",
    "Metric",
    *_STRATEGIES,
    "Sampler",
    "ShardedOptimizer",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check_in_sync",
    "compute_metric",
    "elastic",
    "empty_shared",
    "gather_for_metrics",
    "in_shared_memory",
    "load_checkpoint",
    "profile",
    "rank0_first",
    "save_checkpoint",
    "sync",
    "weight",
    *_mpi_ops.__all__,
]
