"""Framework-independent parts of elastic training, shared by all frontends.

This package keeps a program's state, runs its training function, decides which state to use after a failure,
distributes samples over ranks, computes batch sizes and writes checkpoints. Callers pass in the functions of the engine
and the launcher, so the package imports neither.
"""

from horovod.common.contract.membership import HostUpdateResult
from horovod.common.elastic.checkpoint import Checkpoint
from horovod.common.elastic.loop import run_fn
from horovod.common.elastic.order import Batch, batch
from horovod.common.elastic.state import ObjectState, State
from horovod.common.elastic.updates import WorkerNotificationManager, notification_manager

__all__ = [
    "Batch",
    "Checkpoint",
    "HostUpdateResult",
    "ObjectState",
    "State",
    "WorkerNotificationManager",
    "batch",
    "notification_manager",
    "run_fn",
]
