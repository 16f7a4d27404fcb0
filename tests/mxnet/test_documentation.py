"""The MXNet programs in docs run unchanged."""

import pytest

from tests.documents import programs

# Definitions that the programs leave to the reader.
BEFORE = """
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from horovod.common.frontends import state

random = np.random.RandomState(1)
images = random.randn(96, 6).astype("float32")
labels = images[:, :3].argmax(1).astype("float32")
mx.random.seed(int(state.job.rank))
net = gluon.nn.Dense(3)
net.initialize(mx.init.Xavier())
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
batches = mx.io.NDArrayIter(images[state.job.rank :: 2], labels[state.job.rank :: 2], batch_size=16)
scores = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
model = mx.mod.Module(mx.sym.SoftmaxOutput(scores, name="softmax"))
model.bind(batches.provide_data, batches.provide_label)
"""
AFTER = {
    "gluon": "weights = net.weight.data().asnumpy()",
    "module": "weights = model.get_params()[0]['fc_weight'].asnumpy()",
    "operations": "assert rows.shape == (2, 100)\nweights = rows.asnumpy()",
}


def run(text):
    import horovod.mxnet as hvd

    left = {"__name__": "__main__"}
    exec(compile(text, "program", "exec"), left)
    return [weights.tolist() for weights in hvd.allgather_object(left["weights"])]


def test_every_program_runs_and_leaves_equal_weights(pool):
    found = programs("mxnet")
    if not found:
        pytest.skip("the documents are not here")
    assert set(found) == set(AFTER)
    for name, after in AFTER.items():
        for one, other in pool(2).run(run, BEFORE + found[name].text + after):
            assert one == other, name
