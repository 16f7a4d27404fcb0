"""Run the cases on a rank.

The result of each case is "" or the reason why it failed; a failed case does not stop the others.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from horovod.common import ops
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from tests.conformance import reference
from tests.conformance.adapters import BY_NAME, Adapter
from tests.conformance.cases import Case, cases, errors
from tests.pool import Fleets
from tests.reference import assert_close, assert_same, is_exact

Outcomes = list[str]

SETTINGS = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "60"}
"""Settings of the jobs. The timeout ends jobs in which one rank diverges, instead of waiting for ever."""
PATIENCE = 240.0
"""Seconds for all cases of a frontend on a busy machine."""


def failures(fleets: Fleets, name: str, size: int) -> tuple[int, dict[Case | str, str]]:
    """Return how many cases and kinds of wrong use a frontend has on ``size`` ranks, and the reasons of failures."""
    adapter = BY_NAME[name]
    calls, wrong = cases(adapter.offer, size), errors(adapter.offer, size)
    job = fleets.maker(adapter.kind)(size, **SETTINGS)
    failed: dict[Case | str, str] = {}
    for rank, (worked, refused) in enumerate(job.run(run, name, calls, wrong, timeout=PATIENCE)):
        for what, text in zip([*calls, *wrong], [*worked, *refused], strict=True):
            if text:
                failed.setdefault(what, f"on rank {rank}: {text}")
    return len(calls) + len(wrong), failed


def run(name: str, cases: Sequence[Case], errors: Sequence[str]) -> tuple[Outcomes, Outcomes]:
    """Return the results of the cases and wrong uses for the frontend ``name``, in the given order.

    All ranks call it with the same arguments, in a job with dynamic process sets.
    """
    adapter = BY_NAME[name]()
    size, part = adapter.hvd.size(), global_process_set
    if size > 1:
        part = add_process_set(range(1, size))
    try:
        worked = [
            _tried(lambda c=case, i=index: _check(adapter, c, part if c.part else global_process_set, i))
            for index, case in enumerate(cases)
        ]
        refused = [_tried(lambda e=error: _refused(adapter, e, part)) for error in errors]
    finally:
        if part is not global_process_set:
            remove_process_set(part)
    return worked, refused


def _tried(act: Callable[[], None]) -> str:
    try:
        act()
    except Exception:
        return traceback.format_exc(limit=-4)
    except BaseException as error:  # pytest.raises fails with a BaseException if nothing is raised
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return f"{type(error).__name__}: {error}"
    return ""


def _check(adapter: Adapter, case: Case, process_set: ProcessSet, index: int) -> None:
    ranks, rank = process_set.ranks or [], adapter.hvd.rank()
    if rank not in ranks:
        return
    me, root = ranks.index(rank), index % len(ranks)
    arrays = [adapter.make(array) for array in reference.inputs(case, ranks)[me]]
    arguments: dict[str, Any] = {"name": f"case.{index}"} if case.named else {}
    if case.part:
        arguments["process_set"] = process_set
    if case.operation == "broadcast":
        arguments["root_rank"] = ranks[root]
    if case.reduces:
        arguments["op"] = getattr(ops, case.op)
    if case.scale != (1.0, 1.0):
        arguments["prescale_factor"], arguments["postscale_factor"] = case.scale
    if case.splits:
        arguments["splits"] = reference.splits(me, len(ranks))
    result = adapter.call(case.function, arrays if case.grouped else arrays[0], **arguments)
    if not case.waits:
        result = adapter.wait(result)
    if case.operation == "alltoall" and not case.waits and not case.splits:
        result = result[0]  # handles also return the received splits
    several = case.grouped or case.splits
    results = [adapter.to_numpy(one) for one in (result if several else [result])]
    _compare(case, results, reference.outputs(case, ranks, me, root))
    after = [adapter.to_numpy(tensor) for tensor in arrays]
    for left, expected in zip(after, results if case.in_place else reference.inputs(case, ranks)[me], strict=True):
        assert_same(left, expected)


def _compare(case: Case, results: list[Any], expected: list[Any]) -> None:
    assert len(results) == len(expected), (len(results), len(expected))
    op = getattr(ops, case.op)
    for actual, target in zip(results, expected, strict=True):
        exact = not case.reduces or is_exact(op, target.dtype, *case.scale)
        (assert_same if exact else assert_close)(actual, target)


def _refused(adapter: Adapter, error: str, part: ProcessSet) -> None:
    rank, size = adapter.hvd.rank(), adapter.hvd.size()

    def ones(shape: tuple[int, ...] = (4,), dtype: str = "float32") -> Any:
        return adapter.make(np.ones(shape, dtype))

    def reduce(tensor: Any, **arguments: Any) -> Any:
        return adapter.call("allreduce", tensor, **{"name": "wrong", "op": ops.Sum, **arguments})

    other = rank == size - 1  # the rank that differs from the others
    disagreements: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
        "shapes differ": (lambda: reduce(ones((4 + other,))), ("wrong", "4", "5", "rank 0", f"rank {size - 1}")),
        "dtypes differ": (lambda: reduce(ones((4,), "int32" if other else "float32")), ("wrong", "int32", "float32")),
        "ops differ": (lambda: reduce(ones(), op=ops.Max if other else ops.Min), ("wrong", "Max", "Min")),
        "roots differ": (
            lambda: adapter.call("broadcast", ones(), root_rank=int(other), name="wrong"),
            ("wrong", "root", "0", "1"),
        ),
    }
    bad: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
        "unknown op": (lambda: reduce(ones(), op=17), ("op must be", "17")),
        "unsupported dtype": (lambda: reduce(adapter.unsupported()), ("complex64", "float32")),
        "factor that is no number": (
            lambda: reduce(ones(), prescale_factor="x"),
            ("prescale_factor must be a number", "'x'"),
        ),
        "root outside": (lambda: adapter.call("broadcast", ones(), root_rank=99, name="wrong"), ("root", "99")),
        "splits that do not fit": (
            lambda: adapter.call("alltoall", ones(), splits=[1] * (size + 1), name="wrong"),
            ("splits", str(size + 1)),
        ),
        "set that is not registered": (lambda: reduce(ones(), process_set=ProcessSet([0])), ("set", "regist")),
        "not a member": (lambda: reduce(ones(), process_set=part), ("rank 0", "process")),
    }
    if error in disagreements:
        (call, texts), kinds = disagreements[error], adapter.disagreeing
    else:
        (call, texts), kinds = bad[error], adapter.argument_errors
        if error not in adapter.offer.anonymous:
            texts = (*texts, f"rank {rank}")
    try:
        if error != "not a member" or rank == 0:
            _raises(call, kinds, texts)
    finally:  # the next operation works, and ranks are in step again
        np.testing.assert_array_equal(adapter.to_numpy(reduce(ones(), name="right")), np.full(4, size))


def _raises(call: Callable[[], Any], kinds: tuple[type[BaseException], ...], texts: Sequence[str]) -> None:
    with pytest.raises(kinds) as caught:
        call()
    message = str(caught.value).lower()
    missing = [text for text in texts if text.lower() not in message]
    assert not missing, f"{missing} not in: {caught.value}"
