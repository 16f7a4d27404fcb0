"""Framework-independent parts of elastic training, shared by all frontends.

These are the state of a program, the loop around its function, the decision after a failure, the distribution of
samples over ranks, batch sizes and checkpoints. The code reaches the engine and the launcher only through functions
that callers pass.
"""

from horovod.common.contract.membership import HostUpdateResult
from horovod.common.elastic.batch import Batch, batch
from horovod.common.elastic.checkpoint import Checkpoint
from horovod.common.elastic.loop import run_fn
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
