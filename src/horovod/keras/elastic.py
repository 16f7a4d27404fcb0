"""Elastic training with Keras.

Example::

    state = hvd.elastic.KerasState(model, batch=0, epoch=0)

    @hvd.elastic.run
    def train(state):
        model.fit(data, epochs=epochs - state.epoch, callbacks=[
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.CommitStateCallback(state),
        ])

    train(state)
"""

from horovod._keras.api import open_frontend as _open_frontend
from horovod._keras.elastic import make_elastic as _make_elastic
from horovod.common.elastic import Batch, ObjectState, State
from horovod.common.elastic.own import PerRank, RandomNumbers

_made = _make_elastic(_open_frontend(), __name__)
run = _made["run"]
batch = _made["batch"]
KerasState = _made["KerasState"]
TensorFlowKerasState = _made["TensorFlowKerasState"]
CommitStateCallback = _made["CommitStateCallback"]
Checkpoint = _made["Checkpoint"]
ElasticDataset = _made["ElasticDataset"]
UpdateDatasetCallback = _made["UpdateDatasetCallback"]
UpdateBatchStateCallback = _made["UpdateBatchStateCallback"]
UpdateEpochStateCallback = _made["UpdateEpochStateCallback"]

__all__ = [
    "Batch",
    "Checkpoint",
    "CommitStateCallback",
    "ElasticDataset",
    "KerasState",
    "ObjectState",
    "PerRank",
    "RandomNumbers",
    "State",
    "TensorFlowKerasState",
    "UpdateBatchStateCallback",
    "UpdateDatasetCallback",
    "UpdateEpochStateCallback",
    "batch",
    "run",
]
