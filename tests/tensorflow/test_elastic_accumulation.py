"""Recovery in the middle of several backward passes: the cycle restarts, and new ranks are at the same pass."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow.reduction import make_allreduce_grads
from tests.tensorflow.training import train_elastically

V1 = tf.compat.v1
PASSES, STEPS, FAILS = 2, 6, 3


class Eager:
    """Two passes are a step of SGD with rate 1, starting at 0."""

    def __init__(self, wrap) -> None:
        self.weight = tf.Variable([0.0])
        helper = hvd.LocalGradientAggregationHelper(PASSES, make_allreduce_grads("accumulated"))

        def one_pass(gradient):
            reduced = helper.compute_gradients([gradient], [self.weight])
            helper.apply_gradients(lambda: self.weight.assign_sub(reduced[0]))

        self._pass, self.helper = wrap(one_pass), helper
        self.state = hvd.elastic.TensorFlowState(variables=[self.weight], step=0)

    def one_pass(self, gradient):
        self._pass(tf.constant([gradient]))

    def metric(self):
        hvd.allreduce(tf.ones([1]), name="metric")

    def value(self):
        return self.weight.numpy().tolist()


class Session(Eager):
    def __init__(self) -> None:
        self.session = V1.Session()
        weight = V1.get_variable("weight", initializer=np.zeros(1, np.float32))
        self.gradient = V1.placeholder(tf.float32, [1])
        optimizer = hvd.DistributedOptimizer(V1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=PASSES)
        self.train = optimizer.apply_gradients(optimizer.compute_gradients(weight * self.gradient, [weight]))
        self.weight = weight
        self.sum = hvd.allreduce(tf.ones([1]), name="metric")
        self.session.run(V1.global_variables_initializer())
        self.state = hvd.elastic.TensorFlowState(session=self.session, step=0)
        V1.get_default_graph().finalize()

    def one_pass(self, gradient):
        self.session.run(self.train, {self.gradient: [gradient]})

    def metric(self):
        self.session.run(self.sum)

    def value(self):
        return self.session.run(self.weight).tolist()


PROGRAMS = {"eager": lambda: Eager(lambda f: f), "function": lambda: Eager(tf.function), "session": Session}


def loses_a_rank(kind):
    hvd.init()
    graph = tf.Graph().as_default() if kind == "session" else contextlib.nullcontext()
    with graph:
        return trains(kind)


def trains(kind):
    world = hvd.rank()
    program = PROGRAMS[kind]()
    state, begun = program.state, []

    def train(state):
        begun.append(state.step)
        while state.step < STEPS:
            state.commit()
            for number in range(PASSES):
                program.one_pass(float(10 * state.step + number + hvd.rank()))
                assert state._in_a_step() is (number == 0)
                if state.step == FAILS and number == 0:
                    if world == 1:
                        hvd.shutdown()
                        return None
                    if hvd.size() == 2:
                        program.metric()
            state.step += 1
        return program.value()

    return train_elastically(train, state, [0]), begun


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [pytest.param("eager", marks=pytest.mark.heavy), "function", "session"])
def test_a_cycle_that_failed_begins_anew(tf_pool, kind):
    """The division by the number of ranks, in existing functions and graphs, uses the new number."""
    expected = -sum(10.0 * step + number for step in range(STEPS) for number in range(PASSES))
    expected -= FAILS * PASSES * 0.5  # two ranks, whose gradients differ by 1, until the step that fails
    found = tf_pool(2, initialized=False, HOROVOD_ELASTIC="1").run(loses_a_rank, kind)
    assert found == [([expected], [0, FAILS]), (None, [0])]
