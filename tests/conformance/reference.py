"""Inputs of all ranks and expected results, computed in one process in double precision or 64-bit integers."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from horovod.common import ops
from tests.conformance.cases import Case
from tests.reference import Array, reduced, value

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def dtype_of(name: str) -> np.dtype[Any]:
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def shapes(case: Case, rank: int, size: int) -> list[tuple[int, ...]]:
    """Return the shapes of a rank's inputs: one, or those of a group. ``rank``, ``size``: within the process set."""
    first = case.shape
    if case.operation == "allgather":
        first = (first[0] + (0 if case.even else rank % 2), *first[1:])
    elif case.operation == "alltoall":
        rows = sum(splits(rank, size)) + 1 if case.splits else first[0] * size
        first = (rows, *first[1:])
    if not case.grouped:
        return [first]
    return [first, (2, 2), (1,)] + ([()] if case.operation == "allreduce" else [])


def splits(rank: int, size: int) -> list[int]:
    """Return the number of rows that a rank sends to each rank."""
    return [(rank + peer) % 3 for peer in range(size)]


def inputs(case: Case, ranks: Sequence[int]) -> list[list[Array]]:
    """Return the inputs of each rank, by its index in the process set."""
    dtype, size = dtype_of(case.dtype), len(ranks)
    return [[value(ranks[index], dtype, shape) for shape in shapes(case, index, size)] for index in range(size)]


def outputs(case: Case, ranks: Sequence[int], me: int, root: int) -> list[Array]:
    """Return the expected results on the rank with index ``me``, one for each input array.

    For an alltoall with splits, also the numbers of rows received. ``root``: index of a broadcast's root.
    """
    arrays = inputs(case, ranks)
    columns = list(zip(*arrays, strict=True))
    if case.operation == "broadcast":
        return arrays[root]
    if case.operation == "allgather":
        return [np.concatenate(column) for column in columns]
    if case.operation == "alltoall":
        return _exchanged(case, columns[0], me)
    op = getattr(ops, case.op)
    whole = [reduced(op, column, *case.scale) for column in columns]
    if case.operation == "allreduce":
        return whole
    return [np.array_split(array, len(ranks))[me] for array in whole]


def _exchanged(case: Case, arrays: Sequence[Array], me: int) -> list[Array]:
    size = len(arrays)
    counts = [splits(rank, size) if case.splits else [len(array) // size] * size for rank, array in enumerate(arrays)]
    parts = [array[sum(c[:me]) : sum(c[: me + 1])] for array, c in zip(arrays, counts, strict=True)]
    received = np.array([c[me] for c in counts], np.int32)
    return [np.concatenate(parts), *([received] if case.splits else [])]
