"""Horovod for Keras: Keras 3 on TensorFlow, PyTorch or JAX, and Keras 2 (tf_keras, with TF_USE_LEGACY_KERAS=1).

Example::

    import horovod.keras as hvd

    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss=...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

from typing import Any

from horovod import _absent

# Import the native engine here, so that an import error shows up immediately.
from horovod import _core as _native
from horovod._keras.api import open_frontend as _open_frontend
from horovod.common import frontends as _frontends
from horovod.common.exceptions import HorovodInternalError
from horovod.common.objects import rank0_first
from horovod.common.ops import Adasum, Average, Sum
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.common.training_loop.evaluation import Metric, gather_for_metrics
from horovod.common.training_loop.gradients import groups_of as _groups_of
from horovod.keras import callbacks, elastic

_frontend = _open_frontend()
_functions = _frontend.functions
_basics = _frontend.adapter.basics
Compression = _frontend.adapter.Compression

init = _basics.init
shutdown = _frontend.adapter.shutdown
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
compute_metric = _functions.compute_metric
sync = _functions.sync


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    scale_local_gradients: bool = True,
    weight: Any = None,
) -> Any:
    """Return an optimizer equivalent to ``optimizer`` that reduces gradients over the ranks.

    Each update reduces the gradients once, before they are clipped and applied. The class of the result is a subclass
    of the optimizer's class, with the same name, so a saved model loads in a process without Horovod. An optimizer
    without state is created anew from its config if that is complete. Otherwise the given object becomes distributed
    itself. The learning rate is not scaled. A variable must have a gradient on all ranks or on none.

    Args:
        optimizer (Optimizer): Keras optimizer.
        name (str, optional): Name prefix of the operations. Default: ``Distributed`` and the class name.
        device_dense (str): Ignored; accepted for compatibility.
        device_sparse (str): Ignored; accepted for compatibility.
        compression (Compressor): See ``Compression``. Default: none.
        sparse_as_dense (bool): Convert sparse gradients to dense ones before the reduction. Default: False.
        gradient_predivide_factor (float): With ``Average`` over n ranks and a factor f, gradients are divided by f
            before and by n/f after the summation. Default: 1.0.
        op (int): ``Average`` (default) or ``Sum``.
        num_groups (int): Deprecated; use ``groups``.
        groups (int or list of lists of variables, optional): Number of groups, or lists of variables. The gradients of
            a group are reduced together.
        process_set (ProcessSet): Ranks that take part; on other ranks the optimizer is not distributed.
            Default: all ranks.
        backward_passes_per_step (int): Number of calls whose gradients are summed locally before one reduction and
            update. Not supported with JAX; use ``gradient_accumulation_steps`` of Keras. Default: 1.
        average_aggregated_gradients (bool): Average these gradients instead of summing them. Default: False.
        scale_local_gradients (bool): Divide the gradients of variables passed to ``register_local_var``, which are not
            reduced, by the number of ranks. Default: True.
        weight (float, Callable or "batch", optional): Number of samples over which this rank's gradients are the mean,
            or a function that returns it, as a number or a tensor, and is called in each update. Gradients are then the
            mean over all ranks' samples. "batch" stands for the number of entries of the loss in each batch of ``fit``:
            samples, or positions of a sequence, without those that are masked. It requires a loss that is a mean over
            these, as losses of Keras are by default, also with sample weights. With several backward passes per step,
            the gradients of each pass are reduced. All ranks must pass it, or none. Sparse gradients become dense. It
            requires Keras 3 and ``Average``.

    Returns:
        Optimizer: Distributed optimizer. Errors of the backend's operations, when ranks disagree or a rank is lost, are
            raised by ``apply`` and ``fit``.

    Raises:
        ValueError: If an argument is invalid. The message names it, its value and what is accepted.
    """
    return _frontend.distributed(
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
        weight=weight,
    )


def PartialDistributedOptimizer(
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
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a ``DistributedOptimizer`` that does not reduce the gradients of some layers.

    Args:
        optimizer (Optimizer): Keras optimizer.
        name (str, optional): Same as in ``DistributedOptimizer``.
        device_dense (str): Ignored; accepted for compatibility.
        device_sparse (str): Ignored; accepted for compatibility.
        compression (Compressor): Same as in ``DistributedOptimizer``. Default: none.
        sparse_as_dense (bool): Same as in ``DistributedOptimizer``. Default: False.
        gradient_predivide_factor (float): Same as in ``DistributedOptimizer``. Default: 1.0.
        op (int): ``Average`` (default) or ``Sum``.
        backward_passes_per_step (int): Same as in ``DistributedOptimizer``. Default: 1.
        average_aggregated_gradients (bool): Same as in ``DistributedOptimizer``. Default: False.
        groups (int or list of lists of variables, optional): Same as in ``DistributedOptimizer``.
        process_set (ProcessSet): Same as in ``DistributedOptimizer``. Default: all ranks.
        local_layers (Layer or list[Layer], optional): Layers whose gradients are not reduced. They must be built.
        scale_local_gradients (bool): Divide local gradients by the number of ranks. Default: True.

    Returns:
        Optimizer: Distributed optimizer.

    Raises:
        ValueError: If an argument is invalid, or a layer is not built.
    """
    wrapped = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        groups=groups,
        process_set=process_set,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        scale_local_gradients=scale_local_gradients,
    )
    _frontend.register_local_layers(wrapped, local_layers)
    return wrapped


def __getattr__(name: str) -> Any:
    raise _absent.no_attribute(__name__, name)


__all__ = [
    "Metric",
    "gather_for_metrics",
    "rank0_first",
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "check_in_sync",
    "compute_metric",
    "elastic",
    "load_model",
    "reducescatter",
    "sync",
    *_frontends.SHARED_NAMES,
]
