"""Elastic states of TensorFlow. Ranks that leave: test_elastic_accumulation.py."""

import os
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.common.exceptions import HorovodInternalError
from horovod.tensorflow.util import convert_errors
from tests.ranks import on_tensorflow

V1 = tf.compat.v1


@on_tensorflow(2)
def test_ranks_are_synchronized():
    me = hvd.rank()
    variables = [tf.Variable([1.0 + me, 2.0]), tf.Variable(me, dtype=tf.int64)]
    state = hvd.elastic.TensorFlowState(variables=variables, batch=me)
    state.sync()
    assert [v.numpy().tolist() for v in variables] == [[1.0, 2.0], 0], "in eager mode too"
    assert state.batch == 0
    assert (hvd.elastic.batch(9).local, hvd.elastic.batch(9).shares.of) == (5 - me, (5, 4))
    for _ in range(2):
        variables[0].assign_add([5.0, 5.0])
        state.batch += 1
        state.restore()
        assert (variables[0].numpy().tolist(), state.batch) == ([1.0, 2.0], 0)
    variables[0].assign_add([1.0, 1.0])
    state.commit()
    variables[0].assign([0.0, 0.0])
    state.restore()
    assert variables[0].numpy().tolist() == [2.0, 3.0]

    with tf.Graph().as_default() as graph, V1.Session(graph=graph) as session:
        weight = V1.get_variable("weight", initializer=np.float32(10 + me), use_resource=False)
        rest = [
            V1.get_variable("matrix", initializer=np.full((2, 3), me, np.float16)),
            V1.get_variable("empty", initializer=np.zeros((0, 2), np.int64)),
            V1.get_variable("text", initializer=f"of rank {me}"),
        ]
        add = V1.assign_add(weight, 1.0)
        session.run(V1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session, step=me)
        graph.finalize()
        state.sync()
        assert (session.run(weight), state.step) == (10.0, 0)
        assert [one.tolist() if hasattr(one, "tolist") else one for one in session.run(rest)] == [
            [[0.0] * 3] * 2,
            [],
            b"of rank 0",
        ]
        session.run(add)
        state.save()
        session.run([add])
        state.restore()
        assert session.run(weight) == 11.0
        state._new = me == 0  # as if rank 0 were a new rank
        if me == 1:
            session.run(add)
        with mock.patch("horovod.tensorflow.elastic._broadcast", side_effect=hvd.elastic._broadcast) as pickled:
            state.sync()
        assert session.run(weight) == 12.0, "what rank 1 has"
        assert [call.args[1:] for call in pickled.mock_calls] == [(1,)], "texts alone; the attributes go another way"
    with pytest.raises(ValueError, match="variables must be given in eager mode"):
        hvd.elastic.TensorFlowState(batch=0)


@on_tensorflow(2)
def test_job_resumes_from_a_checkpoint(tmp_path):
    weight = tf.Variable([1.0 + hvd.rank(), 2.0])
    state = hvd.elastic.TensorFlowState(variables=[weight], batch=7)
    with hvd.elastic.Checkpoint(tmp_path) as checkpoint:
        checkpoint.save(7, state)
        weight.assign([5.0, 5.0])
    state.batch = 8
    assert hvd.elastic.Checkpoint(tmp_path).resume(state) is None, "the job was not started with --resume"
    os.environ["HOROVOD_RESUME"] = "1"
    try:
        assert hvd.elastic.Checkpoint(tmp_path).resume(state) == (7 if hvd.rank() == 0 else None)
    finally:
        del os.environ["HOROVOD_RESUME"]
    state.sync()
    assert (weight.numpy().tolist(), state.batch) == ([1.0, 2.0], 7)
    with pytest.raises(ValueError, match=r"variable 0 has shape \[3\] in what is loaded, \[2\] in this state"):
        state.load_state_dict({"variables": [np.zeros(3)], "batch": 1})
    with pytest.raises(ValueError, match="this state has batch, which what is loaded has not"):
        state.load_state_dict({"variables": [np.zeros(2)]})


def test_only_errors_of_horovod_operations_are_converted():
    def fails(error):
        def func():
            raise error

        return convert_errors(func)

    with pytest.raises(HorovodInternalError, match="HorovodAllreduce_gradient"):
        fails(tf.errors.UnknownError(None, None, "node HorovodAllreduce_gradient: rank 2 was lost"))()
    with pytest.raises(tf.errors.UnknownError):
        fails(tf.errors.UnknownError(None, None, "disk on fire"))()
    with pytest.raises(tf.errors.InvalidArgumentError):
        fails(tf.errors.InvalidArgumentError(None, None, "HorovodAllreduce: shapes"))()
