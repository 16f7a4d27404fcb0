"""Random arrays through every operation, several in flight at once.

Any shape including empty and 0-dimensional, any strides, order, alignment and dtype.
"""

import numpy as np
import pytest

import horovod.numpy as hvd
from tests.numpy.reference import ALL, assert_reduced, assert_same

ROUNDS, AT_LENGTH = 40, 800
TOGETHER = 6  # operations in flight at once


def random_view(random, dtype):
    """Return an uninitialized array whose layout ``random`` chooses, equal on all ranks with the same state."""
    shape = [int(random.choice([0, 1, 1, 2, 3, 4, 7])) for _ in range(random.integers(0, 5))]
    spare = [n * int(random.choice([1, 1, 2, 3])) + int(random.integers(0, 2)) for n in shape]
    order = "F" if random.random() < 0.3 else "C"
    if random.random() < 0.2:  # a field of a record: strides that are no multiple of the item size, and odd addresses
        base = np.zeros(spare, np.dtype([("a", "u1"), ("b", dtype)]), order=order)["b"]
    else:
        base = np.zeros(spare, dtype, order=order)
    steps = [s // n if n else 1 for n, s in zip(shape, spare, strict=True)]
    view = base[(*(slice(0, n * step, step) for n, step in zip(shape, steps, strict=True)), ...)]
    turned = view.transpose(random.permutation(view.ndim)) if random.random() < 0.5 else view
    flips = tuple(slice(None, None, -1) if random.random() < 0.3 else slice(None) for _ in range(turned.ndim))
    return turned[flips] if turned.ndim else turned


def started(random, view, inputs):
    """Start an operation on this rank's ``view``; return (a function that checks the result, the handle)."""
    rank, size = hvd.rank(), hvd.size()
    kind = random.choice(["allreduce", "in place", "broadcast", "gather", "scatter", "alltoall", "group"])
    if view.ndim == 0 and kind in ("gather", "scatter", "alltoall"):
        kind = "allreduce"
    op = hvd.Max if view.dtype == bool else int(random.choice([hvd.Sum, hvd.Min, hvd.Max, hvd.Product, hvd.Average]))
    if kind == "allreduce":
        return hvd.allreduce_async(view, op=op), lambda result: assert_reduced(result, op, inputs)
    if kind == "in place":

        def check(result):
            assert result is view
            assert_reduced(np.array(view, order="C"), op, inputs)

        return hvd.allreduce_async_(view, op=op), check
    if kind == "group":

        def check_all(results):
            for result in results:
                assert_reduced(result, op, inputs)

        return hvd.grouped_allreduce_async([view, view.copy()], op=op), check_all
    if kind == "broadcast":
        root = int(random.integers(size))
        return hvd.broadcast_async(view, root), lambda result: assert_same(result, inputs[root])
    if kind == "gather":
        return hvd.allgather_async(view), lambda result: assert_same(result, np.concatenate(inputs))
    if kind == "scatter" and view.dtype != bool:
        parts = [np.array_split(x, size)[rank] for x in inputs]
        return hvd.reducescatter_async(view, op=hvd.Sum), lambda result: assert_reduced(result, hvd.Sum, parts)
    counts = [view.shape[0] // size] * size
    expected = np.concatenate([x[sum(counts[:rank]) : sum(counts[: rank + 1])] for x in inputs])
    return hvd.alltoall_async(view, counts), lambda result: assert_same(result[0], expected)


def rounds(count, seed):
    alike = np.random.default_rng(seed)
    for _ in range(count):
        waiting = []
        for _ in range(TOGETHER):
            dtype = ALL[alike.integers(len(ALL))]
            view = random_view(alike, dtype)
            inputs = [np.asarray(alike.integers(0, 3, view.shape)).astype(dtype) for _ in range(hvd.size())]
            view[...] = inputs[hvd.rank()]
            waiting.append(started(alike, view, inputs))
        for place in alike.permutation(TOGETHER):
            handle, check = waiting[place]
            check(handle.result(60))


def test_random_arrays(pool):
    pool(2).run(rounds, ROUNDS, 1)


@pytest.mark.heavy
@pytest.mark.parametrize("size", [1, 3])
def test_many_random_arrays(pool, size):
    pool(size).run(rounds, AT_LENGTH, 10 + size, timeout=300)
    pool(size, HOROVOD_TRANSPORT="tcp").run(rounds, AT_LENGTH, 20 + size, timeout=300)
