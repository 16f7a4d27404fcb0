"""Unnamed groups are numbered within their process set, as in every frontend."""

import tensorflow as tf

import horovod.tensorflow as hvd
from tests.ranks import on_tensorflow


def counts_of_sets(own):
    """Rank 0 first has groups in a process set that does not contain rank 1."""
    alone = hvd.ProcessSet([0])
    hvd.init(process_sets=[alone])
    group = [tf.ones([2]), tf.ones([3])]
    if hvd.rank() == 0:
        for _ in range(own):
            hvd.grouped_allreduce(group, op=hvd.Sum, process_set=alone)
    sums = [hvd.grouped_allreduce(group, op=hvd.Sum)[1].numpy().tolist() for _ in range(3)]
    rows = hvd.grouped_allgather(group)[1].shape[0]
    hvd.shutdown()
    return sums, rows


def test_groups_are_counted_per_process_set(tf_pool):
    assert tf_pool(2, initialized=False).run(counts_of_sets, 2) == [([[2.0] * 3] * 3, 6)] * 2


@on_tensorflow(2)
def test_counts_restart_after_a_join():
    """Ranks had different numbers of groups when all of them joined."""
    for _ in range(1 + hvd.rank()):
        hvd.grouped_allreduce([tf.ones([2]), tf.ones([3])], op=hvd.Sum)
    hvd.join()
    assert hvd.grouped_allreduce([tf.ones([2]), tf.ones([3])], op=hvd.Sum)[0].numpy().tolist() == [2.0, 2.0]


@on_tensorflow(2)
def test_a_smaller_group_on_one_rank_is_an_error():
    """Rank 0 has no gradient for one of the variables; check each form's error, and a reduction afterwards."""
    one, other = tf.Variable([1.0, 2.0]), tf.Variable([3.0])
    gradients = []
    for groups in (None, 1, [[other, one]]):
        with hvd.DistributedGradientTape(tf.GradientTape(), groups=groups) as tape:
            loss = tf.reduce_sum(one * one) + (tf.reduce_sum(other) if hvd.rank() else 0.0)
        try:
            gradients.append(tape.gradient(loss, [one, other]))
        except tf.errors.FailedPreconditionError as error:
            gradients.append("disagree about the size of the group" in str(error))
    third = tf.Variable([4.0])
    with hvd.DistributedGradientTape(tf.GradientTape(), groups=[[other], [one, third]]) as tape:
        loss = tf.reduce_sum(one * one) + tf.reduce_sum(third)
    gradients += [None if g is None else g.numpy().tolist() for g in tape.gradient(loss, [one, other, third])]
    assert gradients == [True, True, True, [2.0, 4.0], None, [1.0]]
