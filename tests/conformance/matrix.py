"""The matrix, docs/faces.md, from what became of the cases. Pure: with no failures it is known without a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from tests.conformance.adapters import ALL, Adapter
from tests.conformance.cases import DTYPES, ERRORS, FUNCTIONS, SIZES, Case, cases, errors

Failure = tuple[int, Case | str]
"""On how many ranks, and which case or wrong use."""
Failures = Mapping[str, Iterable[Failure]]
"""By name of the face."""
OfRow = Callable[[Case | str], bool]
NOT_THERE = "-"

HEAD = """# What each face has

One set of tests ([tests/conformance](../tests/conformance/__init__.py)) runs over all faces but Keras 2's: each
function in each form that a face has it, with every dtype, shapes with and without elements, all reductions but Adasum,
with and without names, groups, factors and process sets, on {sizes} ranks of one host. A number says how many calls of
a kind were made and gave, on all ranks, what a computation in one process gives, bit for bit where nothing is rounded;
`{none}` that the face has no such thing. This page is written by such a run,
`python -m tests.conformance > docs/faces.md`. MXNet, which has an environment of its own, is not in it:
`make test-mxnet` makes the same calls.

Of Keras it is the functions alone; its optimizers and callbacks have tests of their own, on all backends. JAX, which
has no 64 bits unless told to, is tested without; within its compiled programs, whose shapes are known before, all ranks
give equally many rows, and no splits.
"""

FUNCTIONS_TEXT = "What ends with `_` works in place, what has `_async` returns a handle.\n\n"
WRONG_TEXT = (
    "Refused with an error that names what is given and what is accepted, or, where ranks disagree, what each has\n"
    "given; and the next call works.\n\n"
)


def page(failures: Failures = {}) -> str:  # noqa: B006
    """Text of docs/faces.md. ``failures``: none if not given."""
    failed = {name: Counter(which) for name, which in failures.items()}
    functions = [(f"`{name}`", _is_call(function=name)) for name in FUNCTIONS]
    dtypes = [(f"`{name}`", _is_call(dtype=name)) for name in DTYPES]
    wrong = [(name, name.__eq__) for name in ERRORS]
    parts = [
        HEAD.format(sizes=f"{SIZES[0]} to {SIZES[-1]}", none=NOT_THERE),
        _table("Functions", FUNCTIONS_TEXT, functions, failed),
        _table("Dtypes", "", dtypes, failed),
        _table("Wrong use", WRONG_TEXT, wrong, failed),
    ]
    return "\n".join(parts)


def _is_call(**having: str) -> OfRow:
    return lambda case: isinstance(case, Case) and all(getattr(case, key) == value for key, value in having.items())


def _table(title: str, text: str, rows: list[tuple[str, OfRow]], failed: Mapping[str, Counter[Failure]]) -> str:
    names = [adapter.name for adapter in ALL]
    lines = [f"## {title}\n\n{text}| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for label, of_row in rows:
        cells = [_cell(adapter, of_row, failed.get(adapter.name, Counter())) for adapter in ALL]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(adapter: type[Adapter], of_row: OfRow, failed: Counter[Failure]) -> str:
    whole = [case for size in SIZES for case in (*cases(adapter.offer, size), *errors(adapter.offer, size))]
    tried = sum(of_row(case) is True for case in whole)
    if not tried:
        return NOT_THERE
    bad = sum(of_row(case) is True for _, case in failed)
    return f"**{bad} of {tried} fail**" if bad else str(tried)
