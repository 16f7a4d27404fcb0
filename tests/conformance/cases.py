"""The list of cases. Pure and without any framework, so that the matrix in docs/frontends.md is checked quickly."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

FLOATS = ("float16", "bfloat16", "float32", "float64")
DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64", *FLOATS, "bool")
OPS = ("Sum", "Average", "Min", "Max", "Product")
SHAPES = ((), (1,), (17,), (0,), (4, 0, 2), (2, 3, 4), (1031,))
USUAL = (3, 5)

FORMS = ("", "_", "_async", "_async_")
FUNCTIONS = (
    *(f"allreduce{form}" for form in FORMS),
    *(f"grouped_allreduce{form}" for form in FORMS),
    *(f"broadcast{form}" for form in FORMS),
    *(f"{group}allgather{form}" for group in ("", "grouped_") for form in ("", "_async")),
    *(f"alltoall{form}" for form in ("", "_async")),
    *(f"{group}reducescatter{form}" for group in ("", "grouped_") for form in ("", "_async")),
)
"""All functions of all frontends that have cases here."""

SIZES = (1, 2, 3, 4)
"""World sizes of the complete run."""


@dataclass(frozen=True)
class Offer:
    """Functions, dtypes and arguments that a frontend supports."""

    functions: tuple[str, ...] = FUNCTIONS
    dtypes: tuple[str, ...] = DTYPES
    lacks: frozenset[str] = field(default_factory=frozenset)
    """Arguments that the frontend's functions do not take.

    "process_set", or "prescale_factor" (for both factors); "reducescatter: prescale_factor" if it applies to this
    operation alone; "complex64" if the framework has no unsupported dtype to test with.
    """
    ops: tuple[str, ...] = OPS
    """Reductions of allreduce."""
    uneven: bool = True
    """True if ranks may give different numbers of rows to an allgather, and splits to an alltoall.

    False where shapes must be known in advance.
    """
    anonymous: frozenset[str] = frozenset()
    """Entries of ERRORS that the engine detects when a framework's operation runs, without naming the rank."""


@dataclass(frozen=True)
class Case:
    """One valid call. ``shape`` is that of rank 0; dimension 0 depends on the rank where allowed."""

    function: str
    dtype: str = "float32"
    shape: tuple[int, ...] = USUAL
    op: str = "Sum"
    scale: tuple[float, float] = (1.0, 1.0)
    part: bool = False
    """True if it uses the process set of all ranks but 0, which needs at least two ranks."""
    splits: bool = False
    named: bool = True
    even: bool = False
    """True if all ranks give the same number of rows to an allgather; by default they differ."""

    @property
    def operation(self) -> str:
        """Return the base operation, such as ``allreduce`` for ``grouped_allreduce_async_``."""
        return self.function.removeprefix("grouped_").removesuffix("_").removesuffix("_async")

    @property
    def grouped(self) -> bool:
        return self.function.startswith("grouped_")

    @property
    def in_place(self) -> bool:
        return self.function.endswith("_")

    @property
    def waits(self) -> bool:
        """Return True if the call blocks until the result is available."""
        return "_async" not in self.function

    @property
    def reduces(self) -> bool:
        return self.operation in ("allreduce", "reducescatter")


ERRORS = (
    "unknown op",
    "unsupported dtype",
    "factor that is no number",
    "root outside",
    "splits that do not fit",
    "set that is not registered",
    "not a member",
    "shapes differ",
    "dtypes differ",
    "ops differ",
    "roots differ",
)
"""Kinds of wrong use. Errors of ranks that disagree are raised on all ranks, after negotiation."""
OF_TWO = frozenset(("not a member", "shapes differ", "dtypes differ", "ops differ", "roots differ"))
"""Kinds of wrong use that need at least two ranks."""


def cases(offer: Offer, size: int) -> list[Case]:
    """Return the valid calls of a frontend on ``size`` ranks."""
    result: list[Case] = []
    for function in offer.functions:
        for case in _of(function, offer):
            if case.part and (size < 2 or "process_set" in offer.lacks):
                continue
            factors = {"prescale_factor", f"{case.operation}: prescale_factor"}
            if case.scale != (1.0, 1.0) and factors & offer.lacks:
                continue
            if case.splits and not offer.uneven:
                continue
            result.append(case if offer.uneven or case.operation != "allgather" else replace(case, even=True))
    return list(dict.fromkeys(result))


def _of(function: str, offer: Offer) -> Iterator[Case]:
    like = Case(function)
    for dtype in offer.dtypes:
        if like.operation != "reducescatter" or dtype != "bool":
            yield Case(function, dtype)
    for shape in SHAPES:
        if shape or like.operation in ("allreduce", "broadcast"):
            yield Case(function, shape=shape)
    yield Case(function, named=False)
    yield Case(function, part=True)
    yield Case(function, "int32", (17,), part=True, named=False)
    if like.reduces:
        ops = offer.ops if like.operation == "allreduce" else ("Sum", "Average")
        for op in ops:
            for dtype in ("float32", "int32", "bfloat16"):
                if dtype in offer.dtypes:
                    yield Case(function, dtype, op=op)
        yield Case(function, op="Average", scale=(3.0, 0.25))
        yield Case(function, scale=(0.5, 4.0))
        yield Case(function, op="Average", part=True)
    if like.operation == "alltoall":
        for dtype in ("float32", "int32"):
            yield Case(function, dtype, splits=True)
        yield Case(function, splits=True, part=True)
        yield Case(function, shape=(0, 2), splits=True)


def errors(offer: Offer, size: int) -> list[str]:
    """Return the kinds of wrong use that a frontend on ``size`` ranks must reject."""
    lacking: Collection[str] = {
        name
        for name, lacks in (
            ("factor that is no number", "prescale_factor" in offer.lacks),
            ("unsupported dtype", "complex64" in offer.lacks),
            ("splits that do not fit", "alltoall" not in offer.functions or not offer.uneven),
            ("set that is not registered", "process_set" in offer.lacks),
            ("not a member", "process_set" in offer.lacks),
        )
        if lacks
    }
    return [name for name in ERRORS if name not in lacking and (size > 1 or name not in OF_TWO)]
