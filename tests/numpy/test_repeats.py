"""Repeated blocking calls take a shorter path (horovod/numpy/repeats.py); changed calls must not take it."""

import numpy as np

import horovod.numpy as hvd
from horovod.numpy import repeats
from tests.ranks import on_ranks


@on_ranks(2)
def test_changed_calls_are_not_treated_as_repeats():
    def ones(*shape, dtype=np.float32):
        return np.full(shape, hvd.rank() + 1, dtype)

    total = hvd.size() * (hvd.size() + 1) / 2
    changes = [
        (lambda: ones(4), {}, total),
        (lambda: ones(2, 2), {}, total),
        (lambda: ones(4, dtype=np.int32), {}, total),
        (lambda: ones(8)[::2], {}, total),
        (lambda: ones(4).astype(">f4").astype("f4"), {}, total),
        (lambda: ones(4), {"op": hvd.Max}, hvd.size()),
        (lambda: ones(4), {"prescale_factor": 2.0}, 2 * total),
        (lambda: ones(), {}, total),
        (lambda: ones(0), {}, total),
    ]
    for name in ("x", None):
        for call in (hvd.allreduce_, hvd.allreduce):
            for make, arguments, expected in [*changes, *reversed(changes)]:
                for step in range(6):
                    value = make()
                    result = call(value, name=name, **{"op": hvd.Sum, **arguments})
                    case = (call.__name__, name, arguments, value.shape, value.dtype, step)
                    assert (result is value) == (call is hvd.allreduce_), case
                    assert (result.shape, result.dtype) == (value.shape, value.dtype), case
                    assert (result == expected).all(), case
    assert set(repeats._idle) >= {"x", None}  # and names of earlier tests in this process
