"""Argument checks for collectives on NumPy arrays.

All functions raise ValueError with a message that begins with the argument ``what`` and names the value and the
accepted values.
"""

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from horovod.common import dtypes
from horovod.common.frontends import Frontend
from horovod.common.ops import check_op, check_parts, check_scale, check_splits
from horovod.common.ops import check_reduction as check_reduction_of
from horovod.common.process_sets import ProcessSet

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Reduction:
    """Parameters of a reduction. ``_core.pyi`` defines the integer codes."""

    op: int
    process_set: ProcessSet
    prescale: float = 1.0
    postscale: float = 1.0
    wire: int = 0


def label_of(frontend: Frontend, full_name: str, operation: str) -> str:
    """Return the start of an error message, such as ``allreduce.x on rank 1``.

    Raises:
        ValueError: If Horovod is not initialized.
    """
    if frontend.engine is None:
        frontend.require_engine()
    return f"{full_name or operation} on rank {frontend.require_job().rank}"


def code_of(dtype: Any, what: str) -> int:
    """Return the engine's code for a NumPy or JAX dtype that can be reduced."""
    dtype = np.dtype(dtype)
    code = _codes.get(dtype)
    if code is not None:
        return code
    if dtype.name not in dtypes.CODES:
        raise ValueError(f"{what}: the tensor's dtype must be one of {dtypes.SUPPORTED}, got {dtype.name}")
    _check_order(dtype, what)
    return _codes.setdefault(dtype, dtypes.CODES[dtype.name])


# The engine's code of each dtype, cached because NumPy rebuilds a dtype's name on each access.
_codes: dict[Any, int] = {}


# Engine codes for dtypes that are sent as a different dtype of the same size. These include uint32, which Keras uses
# for random seeds.
_TWINS = {"uint32": dtypes.INT32, "uint64": dtypes.INT64}


def code_of_copied(dtype: Any, what: str) -> int:
    """Return the engine's code for a dtype in operations that only copy values.

    Such operations also support unsigned 32- and 64-bit integers, and the 8-bit floats of ml_dtypes.
    """
    dtype = np.dtype(dtype)
    twin = dtypes.UINT8 if dtype.name.startswith("float8_") else _TWINS.get(dtype.name)
    if twin is None:
        return code_of(dtype, what)
    _check_order(dtype, what)
    return twin


def _check_order(dtype: Any, what: str) -> None:
    if not dtype.isnative:
        raise ValueError(
            f"{what}: the tensor must have this machine's byte order, got dtype {dtype.str}; pass "
            f"array.astype({dtype.name!r})"
        )


def set_id(frontend: Frontend, process_set: ProcessSet, what: str) -> int:
    """Return the id of a process set. Checks that the set is registered and contains this rank."""
    rank = frontend.require_job().rank
    number = getattr(process_set, "process_set_id", None)
    if number is None:
        raise ValueError(
            f"{what} on rank {rank}: process_set must be registered with add_process_set, got {process_set}"
        )
    if process_set.rank() is None:
        raise ValueError(f"{what}: rank {rank} is not in {process_set}")
    return int(number)


def root_of(root_rank: Any, process_set: ProcessSet, what: str) -> int:
    """Check that the world rank ``root_rank`` is in the process set, and return it as an int."""
    try:
        root = operator.index(root_rank)
    except TypeError:
        root = -1
    if root not in (process_set.ranks or ()):
        raise ValueError(f"{what}: root_rank must be one of the ranks of {process_set}, got {root_rank!r}")
    return root


def check_reduction(dtype: Any, reduction: Reduction, what: str) -> int:
    """Check that a reduction supports a dtype, and return the engine's code for the dtype.

    Raises:
        NotImplementedError: If the reduction is Adasum and the number of ranks is not a power of two.
        ValueError: If the reduction is not supported for the dtype, or unknown.
    """
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
    """Return the row count for each rank of a process set of ``size`` ranks, or None for equal parts.

    Equal parts require that dimension 0 of ``array`` is a multiple of ``size``.

    Raises:
        ValueError: If ``splits`` is not a list of integers, or equal parts are not possible.
    """
    # Let a 0-dimensional array pass, because the engine rejects it on all ranks.
    rows = array.shape[0] if array.ndim else 0
    if splits is None:
        check_parts(what, rows, size)
        return None
    given = np.asarray(splits) if isinstance(splits, list | tuple | np.ndarray) else None
    if given is None or given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        kind = f"{given.dtype} of shape {given.shape}" if given is not None else type(splits).__name__
        raise ValueError(f"{what}: splits must be a list or a 1-D array of integers, got {splits!r} ({kind})")
    counts = [int(count) for count in given]
    check_splits(what, counts, rows, size)
    return counts
