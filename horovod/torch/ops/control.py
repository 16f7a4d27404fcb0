"""join and barrier."""

from horovod._core import KIND_BARRIER
from horovod.common import dtypes
from horovod.common.faces import TORCH as face
from horovod.common.ops import Sum
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.ops import handles
from horovod.torch.ops.tensors import set_id

joins = 0
"""How often ``join`` has returned, at once on all ranks."""


def join(device: int = -1) -> int:
    """Says that this rank has no more data; blocks until every rank has, and returns the rank that joined last.

    Until then it counts as zeros in the other ranks' sums, and Average still divides by the number of all ranks; it
    leaves their minima, maxima and products as they are. Other collectives fail while a rank has joined. ``device``:
    accepted for scripts written for GPUs. Raises HorovodInternalError when a peer is lost.
    """
    global joins
    work = face.require_engine().join()
    handles.wait(work, None)
    joins += 1
    return work.sizes[0]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Blocks until every rank of the set has called it. Raises HorovodInternalError when a peer is lost."""
    number = set_id(process_set, "barrier")
    work = face.run(KIND_BARRIER, "barrier.noname", 0, 0, (), dtypes.UINT8, Sum, 0, 1.0, 1.0, number, None, "", 0)
    handles.wait(work, None)
