"""TensorFlow ops, and functions such as ``rank``, at the import path of the original Horovod.

``calls.py`` defines the ops. ``collectives.py`` adds compression and sparse tensors.
"""

from horovod.common import frontends, ops, util
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.ops import *  # noqa: F403
from horovod.common.ops import resolve_op
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.tensorflow.calls import (
    _allreduce,
    _grouped_allreduce,
    allgather,
    alltoall,
    broadcast,
    grouped_allgather,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from horovod.tensorflow.functions import broadcast_
from horovod.tensorflow.gradients import _alltoall_grad

_basics = HorovodBasics("tensorflow")

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

handle_average_backwards_compatibility = resolve_op
"""Function (op, average) -> op for the deprecated argument ``average``."""


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Return True if the framework supports GPUs and this process can use one. Does not initialize CUDA.

    Args:
        ext_base_name (str): Name of the framework. Default: "tensorflow".
        verbose (bool): Same as in ``horovod.common.util.gpu_available``. Default: False.
    """
    return util.gpu_available(ext_base_name, verbose)


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Return True if ``num_rank`` is a power of two."""
    return util.num_rank_is_power_2(num_rank)


__all__ = [
    "allgather",
    "alltoall",
    "broadcast",
    "check_num_rank_power_of_2",
    "gpu_available",
    "grouped_allgather",
    "handle_average_backwards_compatibility",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
    *frontends.SHARED_NAMES,
    *ops.OP_NAMES,
]
