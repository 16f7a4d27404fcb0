"""What the faces share of elastic training: the state of a program, the loop around its function, what is concluded
after a failure (pure), who has which samples (pure), batch sizes (pure) and checkpoints.

Knows neither the engine nor the launcher: both come in as functions.
"""

from horovod.common.contract.host_updates import HostUpdateResult
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
