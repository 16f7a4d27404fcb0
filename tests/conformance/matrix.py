"""The matrix, docs/frontends.md, from the failures of the cases. Pure: without failures it is known without a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from tests.conformance.adapters import ALL, Adapter
from tests.conformance.cases import DTYPES, ERRORS, FUNCTIONS, SIZES, Case, cases, errors

Failure = tuple[int, Case | str]
"""Number of ranks, and the case or kind of wrong use."""
Failures = Mapping[str, Iterable[Failure]]
"""Failures by frontend name."""
OfRow = Callable[[Case | str], bool]
NOT_THERE = "-"

HEAD = """# What each frontend has

You can look up here which functions, dtypes and errors each frontend supports. One set of tests
([tests/conformance](../tests/conformance/__init__.py)) calls each function in each available form,
with every dtype, shapes with and without elements, all reductions except Adasum, with and without
names, groups, factors and process sets, on {sizes} ranks of one host, in all frontends but Keras 2.

A number counts the tested calls of a kind. On all ranks they gave the result of a computation in
one process, bit for bit if nothing is rounded. `{none}` means that the frontend does not have the
function. `python -m tests.conformance > docs/frontends.md` writes this page. MXNet needs a separate
environment and is not included; `make test-mxnet` makes the same calls.

For Keras only the functions are listed; optimizers and callbacks have separate tests, on all
backends. JAX is tested without 64-bit types, which it has only on request. In compiled programs,
whose shapes are fixed, all ranks give equally many rows, and no splits.
"""

FUNCTIONS_TEXT = "Names that end with `_` work in place; names with `_async` return a handle.\n\n"
WRONG_TEXT = (
    "These calls are refused with an error that names the value and what is accepted or, if ranks\n"
    "disagree, both values. The next call works.\n\n"
)


def page(failures: Failures = {}) -> str:  # noqa: B006
    """Return the text of docs/frontends.md. ``failures``: none if not given."""
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
