"""Horovod for NumPy arrays and other objects that support ``__array_interface__``, buffers or DLPack.

Example::

    import horovod.numpy as hvd

    hvd.init()
    mean = hvd.allreduce(array)                 # a new array
    hvd.allreduce_(array, op=hvd.Sum)           # in place
    handle = hvd.allreduce_async(array)         # a concurrent.futures.Future, and awaitable
    total = handle.result()
"""

from typing import Any

try:
    import numpy as _numpy
except ImportError as _error:
    raise ImportError(
        f"horovod.numpy needs NumPy, which cannot be imported ({_error}); install it with: pip install numpy"
    ) from _error
# Import the native engine here, so that an import error shows up immediately.
from horovod import _absent
from horovod import _core as _native
from horovod._arrays.handles import Handle
from horovod.common import frontends as _frontends
from horovod.common import ops as _ops
from horovod.common.exceptions import HorovodInternalError
from horovod.common.objects import rank0_first
from horovod.common.ops import *  # noqa: F403
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.common.training_loop.evaluation import Metric, gather_for_metrics
from horovod.numpy import elastic
from horovod.numpy.compression import Compression
from horovod.numpy.functions import (
    allgather_object,
    broadcast_object,
    broadcast_parameters,
    check_in_sync,
    shutdown,
    sync,
)
from horovod.numpy.functions import basics as _basics
from horovod.numpy.movements import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    join,
    poll,
    synchronize,
)
from horovod.numpy.reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)

init = _basics.init
is_initialized = _basics.is_initialized
rank = _basics.rank
size = _basics.size
local_rank = _basics.local_rank
local_size = _basics.local_size
cross_rank = _basics.cross_rank
cross_size = _basics.cross_size
is_homogeneous = _basics.is_homogeneous
max_size = _basics.max_size
should_stop = _basics.should_stop
mpi_threads_supported = _basics.mpi_threads_supported
mpi_enabled = _basics.mpi_enabled
mpi_built = _basics.mpi_built
gloo_enabled = _basics.gloo_enabled
gloo_built = _basics.gloo_built
nccl_built = _basics.nccl_built
ddl_built = _basics.ddl_built
ccl_built = _basics.ccl_built
cuda_built = _basics.cuda_built
rocm_built = _basics.rocm_built
start_timeline = _basics.start_timeline
stop_timeline = _basics.stop_timeline
dump = _basics.dump
step = _basics.step
stats = _basics.stats
report = _basics.report
log_stats = _basics.log_stats


def __getattr__(name: str) -> Any:
    raise _absent.no_attribute(__name__, name)


__all__ = [
    "Metric",
    "gather_for_metrics",
    "rank0_first",
    "Compression",
    "Handle",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_parameters",
    "check_in_sync",
    "elastic",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sync",
    "synchronize",
    *_frontends.SHARED_NAMES,
    *_ops.OP_NAMES,
]
