"""Words and behaviour that programs in use rely on, in the Keras faces; each test names what."""

import numpy as np
import pytest

from tests.keras.modules import hvd, keras
from tests.ranks import on_keras3


@on_keras3(1, initialized=False)
def test_words_outside_of_a_job_and_a_wrong_op():
    """How calls fail before init and after shutdown, and what a wrong op of reducescatter is."""
    value = np.ones(2, "float32")
    calls = [hvd.rank, hvd.size, *(lambda f=f: f(value) for f in (hvd.allreduce, hvd.allgather, hvd.reducescatter))]
    calls.append(lambda: hvd.broadcast(value, 0))
    for _ in ("before", "after"):
        for call in calls:
            with pytest.raises(ValueError, match="Horovod has not been initialized"):
                call()
        hvd.init()
        with pytest.raises(RuntimeError, match="accepted are Average and Sum") as caught:
            hvd.reducescatter(value, op=hvd.Adasum)
        assert isinstance(caught.value, ValueError)
        hvd.shutdown()


@on_keras3(1)
def test_attributes_of_optimizers():
    """_optimizer, _agg_helper, _HAS_AGGREGATE_GRAD."""
    plain = keras.optimizers.SGD(0.5)
    made = hvd.DistributedOptimizer(plain)
    assert made._optimizer is plain
    assert made._agg_helper is None
    assert made._HAS_AGGREGATE_GRAD
