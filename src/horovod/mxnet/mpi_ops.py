"""Process-management functions and collective operations of MXNet, at the import path that third-party code uses.

``reductions.py`` defines the allreduce operations, and ``operations.py`` the others.
"""

from horovod.common import frontends, ops
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.ops import *  # noqa: F403
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.mxnet.operations import (
    allgather,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_reducescatter,
    reducescatter,
)
from horovod.mxnet.reductions import allreduce, allreduce_, grouped_allreduce, grouped_allreduce_

_basics = HorovodBasics("mxnet")

init = _basics.init
shutdown = _basics.shutdown
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

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
    *frontends.SHARED_NAMES,
    *ops.OP_NAMES,
]
