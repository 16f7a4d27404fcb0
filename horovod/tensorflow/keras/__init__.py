"""Horovod for tf.keras: Keras 3 on TensorFlow, and Keras 2 (tf_keras, with TF_USE_LEGACY_KERAS=1).

In short::

    import horovod.tensorflow.keras as hvd

    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss=...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

from typing import Any

from horovod import _core as _native  # noqa: F401  (an import that cannot work fails here)
from horovod.common import absent as _absent
from horovod.common.exceptions import HorovodInternalError
from horovod.common.gradients import groups_of as _groups_of
from horovod.common.ops import Average, Sum
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.tensorflow.keras import callbacks, elastic
from horovod.tensorflow.keras._face import face as _face
from horovod.tensorflow.keras._face import functions as _functions

_basics = _face.adapter.basics
Compression = _face.adapter.Compression

init = _basics.init
shutdown = _face.adapter.shutdown
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

allreduce = _functions.allreduce
allgather = _functions.allgather
broadcast = _functions.broadcast
check_in_sync = _functions.check_in_sync
reducescatter = _functions.reducescatter
broadcast_global_variables = _functions.broadcast_global_variables
load_model = _functions.load_model


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer like ``optimizer`` that reduces gradients over the ranks, once for every update that is asked for,
    before it applies (and clips) them.

    The result's class is a subclass of the optimizer's, of the same name; a model saved with it loads in a process
    without Horovod. An optimizer without state yet is made anew from its config, if that tells all of it; else the
    given object becomes distributed itself. Values of ``learning_rate`` are those of the optimizer given: scale them
    yourself.

    ``name``: prefix of the operations' names. ``device_dense``, ``device_sparse``: accepted for old programs.
    ``compression``: see ``Compression``. ``sparse_as_dense``: sparse gradients travel as dense ones.
    ``gradient_predivide_factor`` f, for Average: gradients are divided by f before and by n/f after the sum. ``op``:
    Average or Sum. ``groups``: a number of groups, or lists of variables, whose gradients are reduced together;
    ``num_groups``: deprecated. ``process_set``: the ranks that take part; on others it is a plain optimizer.
    ``backward_passes_per_step``: sum up the gradients of so many calls locally, or average them with
    ``average_aggregated_gradients``, before one reduction and update. ``scale_local_gradients``: those of variables
    given to ``register_local_var``, which are not reduced, are divided by n.

    A variable must have a gradient on all ranks or on none. Raises ValueError naming argument, value and what is
    accepted; what the backend's operations raise when ranks disagree or one is lost surfaces in ``apply`` and ``fit``.
    """
    return _face.distributed(
        optimizer,
        name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        predivide=gradient_predivide_factor,
        groups=_groups_of(num_groups, groups),
        process_set=process_set,
        passes=backward_passes_per_step,
        average_passes=average_aggregated_gradients,
        scale_local=scale_local_gradients,
    )


def __getattr__(name: str) -> Any:
    raise _absent.no_attribute(__name__, name)


__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "check_in_sync",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "dump",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "log_stats",
    "max_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "report",
    "rocm_built",
    "should_stop",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "step",
    "stop_timeline",
]
