"""Scale factors that 32-bit floats cannot hold, and names in loops."""

import tensorflow as tf

import horovod.tensorflow as hvd
from tests.ranks import on_tensorflow


@on_tensorflow(2)
def test_scale_factors_keep_their_double_precision():
    rank = hvd.rank()
    tenth = tf.constant([1.0, 3.0], tf.float64)
    whole = tf.constant([10])

    def step():
        scaled = hvd.allreduce(tenth, op=hvd.Sum, prescale_factor=0.1, postscale_factor=1.0 / 3)
        huge = hvd.allreduce(tenth, op=hvd.Sum, prescale_factor=1e200, postscale_factor=1e-200)
        return [
            scaled,
            huge,
            hvd.allreduce(whole, op=hvd.Sum, prescale_factor=0.7),
            hvd.grouped_allreduce([tenth], op=hvd.Sum, prescale_factor=0.1)[0],
            hvd.reducescatter(tenth, op=hvd.Sum, prescale_factor=0.1),
        ]

    with tf.GradientTape() as tape:
        tape.watch(tenth)
        scaled = hvd.allreduce(tenth, op=hvd.Sum, prescale_factor=0.1)
    gradient = tape.gradient(scaled, tenth)
    for run in (step, tf.function(step)):
        scaled, huge, whole_scaled, grouped, scattered = [x.numpy().tolist() for x in run()]
        third = 1.0 / 3
        assert scaled == [(0.1 + 0.1) * third, (3 * 0.1 + 3 * 0.1) * third]
        assert huge == [2.0, 6.0]
        assert whole_scaled == [14]
        assert grouped == [0.2, 3 * 0.1 + 3 * 0.1]
        assert scattered == [grouped[rank]]
    assert gradient.numpy().tolist() == [0.2, 0.2]
