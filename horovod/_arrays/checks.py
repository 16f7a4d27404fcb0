"""What collectives on NumPy arrays accept. All raise ValueError naming ``what``, what is given and what is accepted."""

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from horovod.common import dtypes
from horovod.common.faces import Face
from horovod.common.ops import check_op, check_parts, check_scale, check_splits
from horovod.common.ops import check_reduction as check_reduction_of
from horovod.common.process_sets import ProcessSet

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Reduction:
    """How arrays are reduced. Numbers as in horovod/_core.pyi."""

    op: int
    process_set: ProcessSet
    prescale: float = 1.0
    postscale: float = 1.0
    wire: int = 0


def whose(face: Face, full_name: str, operation: str) -> str:
    """What messages begin with: ``allreduce.x on rank 1``. Raises what the face does outside of a job."""
    if face.engine is None:
        face.require_engine()
    return f"{full_name or operation} on rank {face.require_job().rank}"


def code_of(dtype: Any, what: str) -> int:
    """The engine's code for a NumPy dtype (JAX's are such) whose values can be reduced."""
    dtype = np.dtype(dtype)
    code = _codes.get(dtype)
    if code is not None:
        return code
    if dtype.name not in dtypes.CODES:
        raise ValueError(f"{what}: dtype {dtype.name} is not supported; accepted are {dtypes.SUPPORTED}")
    _check_order(dtype, what)
    return _codes.setdefault(dtype, dtypes.CODES[dtype.name])


_codes: dict[Any, int] = {}  # of dtypes seen: NumPy makes their names anew each time


# What is only copied needs no arithmetic: the seeds of Keras are uint32, which the engine does not have.
_TWINS = {"uint32": dtypes.INT32, "uint64": dtypes.INT64}


def code_of_copied(dtype: Any, what: str) -> int:
    """The same for values that are only copied: also unsigned integers of 32 and 64 bits, and 8-bit floats of
    ml_dtypes."""
    dtype = np.dtype(dtype)
    twin = dtypes.UINT8 if dtype.name.startswith("float8_") else _TWINS.get(dtype.name)
    if twin is None:
        return code_of(dtype, what)
    _check_order(dtype, what)
    return twin


def _check_order(dtype: Any, what: str) -> None:
    if not dtype.isnative:
        raise ValueError(
            f"{what}: dtype {dtype.str} has the bytes of {dtype.name} in another order than this machine; accepted is "
            f"this machine's: array.astype({dtype.name!r})"
        )


def set_id(face: Face, process_set: ProcessSet, what: str) -> int:
    """Id of a registered set that has this rank."""
    rank = face.require_job().rank
    number = getattr(process_set, "process_set_id", None)
    if number is None:
        raise ValueError(f"{what} on rank {rank}: {process_set} is not a registered process set; see add_process_set")
    if process_set.rank() is None:
        raise ValueError(f"{what}: rank {rank} is not in {process_set}")
    return int(number)


def root_of(root_rank: Any, process_set: ProcessSet, what: str) -> int:
    """``root_rank`` as an int, when it is the world rank of a member."""
    try:
        root = operator.index(root_rank)
    except TypeError:
        root = -1
    if root not in (process_set.ranks or ()):
        raise ValueError(f"{what}: root_rank is {root_rank!r}; accepted are the ranks of {process_set}")
    return root


def check_reduction(dtype: Any, reduction: Reduction, what: str) -> int:
    """``code_of`` for a dtype that can be reduced so. NotImplementedError for Adasum on a number of ranks that is no
    power of two."""
    code = code_of(dtype, what)
    try:
        op = check_op(reduction.op)
    except ValueError as refusal:
        raise ValueError(f"{what}: {refusal}") from None
    check_scale(what, reduction.prescale, reduction.postscale)
    size = reduction.process_set.size() or 1
    check_reduction_of(what, code, op, reduction.prescale, reduction.postscale, size)
    return code


def splits_of(splits: Any, array: Array, size: int, what: str) -> list[int] | None:
    """Rows for each rank of a set of ``size``; None for equal parts, which dim 0 of ``array`` has to be a multiple
    of."""
    rows = array.shape[0] if array.ndim else 0  # a 0-dim array is for the engine to refuse: on every rank
    if splits is None:
        check_parts(what, rows, size)
        return None
    given = np.asarray(splits) if isinstance(splits, list | tuple | np.ndarray) else None
    if given is None or given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        kind = f"{given.dtype} of shape {given.shape}" if given is not None else type(splits).__name__
        raise ValueError(f"{what}: splits is {splits!r} ({kind}); accepted are a list and a 1-D array of integers")
    counts = [int(count) for count in given]
    check_splits(what, counts, rows, size)
    return counts
