"""Operations without tensors: ``join`` and ``barrier``."""

from horovod._core import KIND_BARRIER
from horovod.common import dtypes
from horovod.common.frontends import TORCH as face
from horovod.common.ops import Sum
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.ops import handles
from horovod.torch.ops.tensors import set_id

joins = 0
"""Number of completed calls of ``join``. It changes on all ranks at the same point of the program."""


def join(device: int = -1) -> int:
    """Declare that this rank has no more data, and block until every rank has called ``join``.

    Meanwhile this rank contributes zeros to allreduces with ``Sum`` and ``Average``. ``Average`` still divides by the
    number of all ranks. Joined ranks do not affect the results of ``Min``, ``Max`` and ``Product``. Other collectives
    fail while a rank has joined.

    Args:
        device (int): Ignored; accepted for compatibility with scripts written for GPUs.

    Returns:
        int: The rank that joined last.

    Raises:
        HorovodInternalError: A rank was lost.
    """
    global joins
    work = face.require_engine().join()
    handles.wait(work, None)
    joins += 1
    return work.sizes[0]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Block until every rank of the process set has called ``barrier``.

    Args:
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Raises:
        ValueError: This rank is not in the process set, or Horovod is not initialized.
        HorovodInternalError: A rank was lost.
    """
    number = set_id(process_set, "barrier")
    work = face.run(KIND_BARRIER, "barrier.noname", 0, 0, (), dtypes.UINT8, Sum, 0, 1.0, 1.0, number, None, "", 0)
    handles.wait(work, None)
