"""Words and behaviour that programs in use rely on, in the Keras faces; each test names what."""

import numpy as np
import pytest


def outside():
    """How calls fail before init and after shutdown, and what a wrong op of reducescatter is."""
    import horovod.keras as hvd

    value, told = np.ones(2, "float32"), []
    calls = [hvd.rank, hvd.size, *(lambda f=f: f(value) for f in (hvd.allreduce, hvd.allgather, hvd.reducescatter))]
    calls.append(lambda: hvd.broadcast(value, 0))
    for _ in ("before", "after"):
        for call in calls:
            with pytest.raises(ValueError, match="Horovod has not been initialized"):
                call()
        hvd.init()
        with pytest.raises(RuntimeError, match="accepted are Average and Sum") as caught:
            hvd.reducescatter(value, op=hvd.Adasum)
        told.append(isinstance(caught.value, ValueError))
        hvd.shutdown()
    return told


def test_words_outside_of_a_job_and_a_wrong_op(keras3):
    """ "Horovod has not been initialized", a ValueError; reducescatter with another op: RuntimeError and ValueError."""
    assert keras3(1, initialized=False).run(outside) == [[True, True]]


def optimizer_attributes():
    import keras

    import horovod.keras as hvd

    plain = keras.optimizers.SGD(0.5)
    made = hvd.DistributedOptimizer(plain)
    return made._optimizer is plain, made._agg_helper is None, made._HAS_AGGREGATE_GRAD


def test_attributes_of_optimizers(keras3):
    """_optimizer, _agg_helper, _HAS_AGGREGATE_GRAD."""
    assert keras3(1).run(optimizer_attributes) == [(True, True, True)]
