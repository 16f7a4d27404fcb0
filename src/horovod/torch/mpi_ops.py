"""Operations and process functions of the PyTorch frontend, at the import path that third-party code expects."""

from horovod.common import frontends, ops
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.ops import *  # noqa: F403
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.torch import monitoring
from horovod.torch.compression import Compression
from horovod.torch.distributed import hiding
from horovod.torch.ops import handles
from horovod.torch.ops.allgather import (
    allgather,
    allgather_async,
    grouped_allgather,
    grouped_allgather_async,
    sparse_allreduce_async,
)
from horovod.torch.ops.allreduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
)
from horovod.torch.ops.alltoall import alltoall, alltoall_async
from horovod.torch.ops.broadcast import broadcast, broadcast_, broadcast_async, broadcast_async_
from horovod.torch.ops.grouped_allreduce import (
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from horovod.torch.ops.handles import barrier, join, poll, synchronize
from horovod.torch.ops.reducescatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from horovod.torch.profiling import recording
from horovod.torch.sharded.gathers import settle_all

_basics = HorovodBasics("torch")

init = recording(hiding(_basics.init))
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
stats = _basics.stats
report = _basics.report
log_stats = _basics.log_stats


def step() -> None:
    """Mark the end of a training step; see ``horovod.common.basics``.

    The first call also starts to measure how long the program waits for its DataLoaders.

    Raises:
        ValueError: If Horovod is not initialized.
    """
    monitoring.watch_data_loaders()
    _basics.step()


def shutdown() -> None:
    """Shut down Horovod in this process and stop its engine; see ``horovod.common.basics``.

    Handles that were not synchronized become invalid.
    """
    settle_all()
    _basics.shutdown()
    handles.forget_all()


__all__ = [
    "Compression",
    "allgather",
    "allgather_async",
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
    "sparse_allreduce_async",
    "synchronize",
    *frontends.SHARED_NAMES,
    *ops.OP_NAMES,
]
