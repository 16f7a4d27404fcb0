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

_elastic = _make_elastic(_open_frontend(), __name__)
run = _elastic["run"]
batch = _elastic["batch"]
KerasState = _elastic["KerasState"]
TensorFlowKerasState = _elastic["TensorFlowKerasState"]
CommitStateCallback = _elastic["CommitStateCallback"]
Checkpoint = _elastic["Checkpoint"]
ElasticDataset = _elastic["ElasticDataset"]
UpdateDatasetCallback = _elastic["UpdateDatasetCallback"]
UpdateBatchStateCallback = _elastic["UpdateBatchStateCallback"]
UpdateEpochStateCallback = _elastic["UpdateEpochStateCallback"]

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
