"""Elastic states of TensorFlow, and a rank that leaves while others train in a tf.function."""

import os
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.common.elastic import run_fn
from horovod.common.exceptions import HorovodInternalError
from horovod.tensorflow.elastic_errors import errors_as_ours

V1 = tf.compat.v1


def brought_together():
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
        others = [
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
        assert [one.tolist() if hasattr(one, "tolist") else one for one in session.run(others)] == [
            [[0.0] * 3] * 2,
            [],
            b"of rank 0",
        ]
        session.run(add)
        state.save()
        session.run([add])
        state.restore()
        assert session.run(weight) == 11.0
        state._new = me == 0  # as one that has come since, and is rank 0
        if me == 1:
            session.run(add)
        with mock.patch("horovod.tensorflow.elastic._broadcast", side_effect=hvd.elastic._broadcast) as pickled:
            state.sync()
        assert session.run(weight) == 12.0, "what rank 1 has"
        assert [call.args[1:] for call in pickled.mock_calls] == [(1,)], "texts alone; the attributes go another way"
    with pytest.raises(ValueError, match="in eager mode nobody knows which there are"):
        hvd.elastic.TensorFlowState(batch=0)


def test_ranks_are_brought_together(tf_pool):
    tf_pool(2).run(brought_together)


def loses_a_rank():
    """Three ranks train; the last one leaves in step 4."""
    hvd.init()
    world = hvd.rank()
    weight = tf.Variable([float(world)] * 3)
    state = hvd.elastic.TensorFlowState(variables=[weight], step=0)

    @tf.function
    def step(gradient):
        weight.assign_sub(0.5 * hvd.allreduce(gradient, name="gradient"))

    begun = []

    def train(state):
        begun.append(state.step)
        while state.step < 8:
            if state.step % 3 == 0:
                state.commit()
            if world == 2 and state.step == 4:
                hvd.shutdown()
                return None
            step(tf.fill([3], float(hvd.rank() + state.step)))
            state.step += 1
        return weight.numpy().tolist()

    def reset():
        hvd.shutdown()
        hvd.init([0, 1])

    result = run_fn(errors_as_ours(train), reset)(state)
    hvd.shutdown()
    return result, begun


def test_a_lost_rank_in_a_function(tf_pool):
    expected = 0.0
    for step in range(8):
        ranks = 3 if step < 3 else 2  # from the last commit on
        expected -= 0.5 * (sum(range(ranks)) / ranks + step)
    results = tf_pool(3, initialized=False, HOROVOD_ELASTIC="1").run(loses_a_rank)
    assert results[:2] == [([expected] * 3, [0, 3])] * 2


def loses_a_rank_in_a_session():
    """As ``loses_a_rank``, with a graph that is finished before training begins."""
    hvd.init()
    world = hvd.rank()
    with tf.Graph().as_default() as graph, V1.Session(graph=graph) as session:
        weight = V1.get_variable("weight", initializer=np.full(3, world, np.float32))
        gradient = V1.placeholder(tf.float32, [3])
        # This divides by the number of ranks that there are when it runs.
        step = V1.assign_sub(weight, 0.5 * hvd.allreduce(gradient, name="gradient", op=hvd.Average))
        session.run(V1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session, step=0)
        graph.finalize()
        begun = []

        def train(state):
            begun.append(state.step)
            while state.step < 8:
                if state.step % 3 == 0:
                    state.commit()
                if world == 2 and state.step == 4:
                    hvd.shutdown()
                    return None
                session.run(step, {gradient: np.full(3, hvd.rank() + state.step)})
                state.step += 1
            return session.run(weight).tolist()

        def reset():
            hvd.shutdown()
            hvd.init([0, 1])

        result = run_fn(errors_as_ours(train), reset)(state)
    hvd.shutdown()
    return result, begun


def test_a_lost_rank_in_a_session(tf_pool):
    expected = 0.0
    for step in range(8):
        ranks = 3 if step < 3 else 2
        expected -= 0.5 * (sum(range(ranks)) / ranks + step)
    results = tf_pool(3, initialized=False, HOROVOD_ELASTIC="1").run(loses_a_rank_in_a_session)
    assert results[:2] == [([expected] * 3, [0, 3])] * 2


def visits_all():
    """Three ranks go through an epoch of 20 samples; the last one leaves at its third batch."""
    hvd.init()
    world = hvd.rank()
    total = tf.Variable(0.0)
    data = hvd.elastic.ElasticDataset(np.arange(20, dtype=np.float32), batch_size=2, seed=5)
    state = hvd.elastic.TensorFlowState(variables=[total], data=data)

    @tf.function(reduce_retracing=True)
    def step(batch):
        total.assign_add(hvd.allreduce(tf.reduce_sum(batch), op=hvd.Sum, name="sum"))

    def train(state):
        state.save()
        for batch in state.data:
            if world == 2 and state.data.processed_num == 12:
                hvd.shutdown()
                return None
            step(tf.constant(batch))
            state.data.record()
            state.commit()
        return total.numpy(), state.data.processed_num

    def reset():
        hvd.shutdown()
        hvd.init([0, 1])

    result = run_fn(errors_as_ours(train), reset)(state)
    hvd.shutdown()
    return result


def test_a_dataset_over_a_lost_rank(tf_pool):
    results = tf_pool(3, initialized=False, HOROVOD_ELASTIC="1").run(visits_all)
    assert results[:2] == [(float(sum(range(20))), 20)] * 2, "12 by three ranks, the other 8 by two"


def checkpoints(folder):
    weight = tf.Variable([1.0 + hvd.rank(), 2.0])
    state = hvd.elastic.TensorFlowState(variables=[weight], batch=7)
    with hvd.elastic.Checkpoint(folder) as checkpoint:
        checkpoint.save(7, state)
        weight.assign([5.0, 5.0])
    state.batch = 8
    assert hvd.elastic.Checkpoint(folder).resume(state) is None, "the job was not started with --resume"
    os.environ["HOROVOD_RESUME"] = "1"
    try:
        assert hvd.elastic.Checkpoint(folder).resume(state) == (7 if hvd.rank() == 0 else None)
    finally:
        del os.environ["HOROVOD_RESUME"]
    state.sync()
    assert (weight.numpy().tolist(), state.batch) == ([1.0, 2.0], 7)
    with pytest.raises(ValueError, match=r"variable 0 has shape \[3\] in what is loaded, \[2\] in this state"):
        state.load_state_dict({"variables": [np.zeros(3)], "batch": 1})
    with pytest.raises(ValueError, match="this state has batch, which what is loaded has not"):
        state.load_state_dict({"variables": [np.zeros(2)]})


def test_a_job_goes_on_from_a_checkpoint(tf_pool, tmp_path):
    tf_pool(2).run(checkpoints, str(tmp_path))


def test_one_more_may_be_lost_while_ranks_are_brought_together(monkeypatch):
    monkeypatch.setattr(hvd.elastic, "_reset", lambda: None)
    lost = tf.errors.UnknownError(None, None, "node HorovodBroadcast_0: rank 2 was lost")
    state = mock.Mock()
    state.sync.side_effect = [lost, None]
    state.on_reset.side_effect = [lost, None]
    func = mock.Mock(__name__="train", return_value=7)
    assert hvd.elastic.run(func)(state) == 7
    assert (state.restore.call_count, func.call_count) == (2, 1)


def test_only_errors_of_our_operations_become_ours():
    def fails(error):
        def func():
            raise error

        return errors_as_ours(func)

    with pytest.raises(HorovodInternalError, match="HorovodAllreduce_gradient"):
        fails(tf.errors.UnknownError(None, None, "node HorovodAllreduce_gradient: rank 2 was lost"))()
    with pytest.raises(tf.errors.UnknownError):
        fails(tf.errors.UnknownError(None, None, "disk on fire"))()
    with pytest.raises(tf.errors.InvalidArgumentError):
        fails(tf.errors.InvalidArgumentError(None, None, "HorovodAllreduce: shapes"))()
