"""Horovod for JAX.

Example::

    import horovod.jax as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optax.adam(1e-3))
    params = hvd.broadcast_parameters(params, root_rank=0)
    ...
    loss, grads = jax.value_and_grad(loss_of)(params, batch)     # for example in a function under jax.jit
    updates, state = optimizer.update(grads, state, params)      # reduces the gradients over the ranks
"""

from typing import Any

try:
    import jax as _jax
except ImportError as _error:
    raise ImportError(
        f"horovod.jax needs JAX, which cannot be imported ({_error}); install it with: pip install jax"
    ) from _error
try:
    from horovod import _core as _native
except ImportError as _error:
    raise ImportError(f"horovod.jax cannot load the native engine horovod._core: {_error}") from _error

from horovod import _absent
from horovod._jax.compression import Compression
from horovod.common import frontends as _frontends
from horovod.common import ops as _ops
from horovod.common.exceptions import HorovodInternalError
from horovod.common.objects import rank0_first
from horovod.common.ops import *  # noqa: F403
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.common.training_loop.evaluation import Metric, gather_for_metrics
from horovod.jax import collectives as _collectives
from horovod.jax import elastic
from horovod.jax import functions as _functions
from horovod.jax.collectives import *  # noqa: F403
from horovod.jax.functions import *  # noqa: F403
from horovod.jax.functions import allgather_object, broadcast_object, broadcast_parameters, check_in_sync, sync
from horovod.jax.optimizer import DistributedOptimizer, grad, value_and_grad

_functions.register_cluster()


def __getattr__(name: str) -> Any:
    raise _absent.no_attribute(__name__, name)


__all__ = [
    "Metric",
    "gather_for_metrics",
    "rank0_first",
    "Compression",
    "DistributedOptimizer",
    "allgather_object",
    "broadcast_object",
    "broadcast_parameters",
    "check_in_sync",
    "elastic",
    "grad",
    "sync",
    "value_and_grad",
    *_collectives.__all__,
    *_frontends.SHARED_NAMES,
    *_ops.OP_NAMES,
]
