"""Fit of the cost model's parameters (core/plan/cost.h) to measured times. Pure.

The formulas are linear in alpha, beta, gamma and their local counterparts, so this is a linear least-squares problem.
Residuals are relative to the measured times; otherwise the largest messages alone would decide. Parameters are times
and thus not negative (C. Lawson, R. Hanson, Solving Least Squares Problems, 1974; for few unknowns by trying all
subsets).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from horovod import _core

Row = tuple[list[float], float]
"""Coefficients of the parameters, and the measured seconds."""


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Solve by Gaussian elimination with pivoting; return None if the matrix is singular."""
    n = len(right)
    rows = [[*matrix[i], right[i]] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(rows[k][i]))
        if abs(rows[pivot][i]) < 1e-12:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(n):
            if k != i:
                factor = rows[k][i] / rows[i][i]
                rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i], strict=True)]
    return [rows[i][n] / rows[i][i] for i in range(n)]


def least_squares(rows: Sequence[Row]) -> list[float]:
    """Return the non-negative parameters that minimize the sum of squared relative errors.

    Raises:
        ValueError: If there are no rows, or if a measured time is not positive.
    """
    if not rows or any(seconds <= 0 for _, seconds in rows):
        raise ValueError("rows are needed, with measured times above 0")
    scaled = [[value / seconds for value in features] for features, seconds in rows]
    # Bytes are in the millions and messages are few. Scaling all columns to the same magnitude keeps the solver
    # accurate.
    count = len(scaled[0])
    units = [max(max(abs(row[j]) for row in scaled), 1e-300) for j in range(count)]
    scaled = [[value / unit for value, unit in zip(row, units, strict=True)] for row in scaled]
    best, least = [0.0] * count, float(len(rows))
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            matrix = [[sum(row[i] * row[j] for row in scaled) for j in chosen] for i in chosen]
            found = _solve(matrix, [sum(row[i] for row in scaled) for i in chosen])
            if found is None or min(found) < 0:
                continue
            values = [0.0] * count
            for index, value in zip(chosen, found, strict=True):
                values[index] = value
            error = sum((sum(v * x for v, x in zip(values, row, strict=True)) - 1) ** 2 for row in scaled)
            if error < least:
                best, least = values, error
    return [value / unit for value, unit in zip(best, units, strict=True)]


Measured = tuple[str, str, int, float]
"""Collective, algorithm, bytes, seconds."""


def fit(
    measured: Sequence[Measured],
    node_of: list[int],
    parameters: Sequence[str],
    predict: Callable[..., float] = _core.predict,
) -> dict[str, float]:
    """Return fitted values of ``parameters`` (names of the cost model).

    The other parameters count as zero, so measure algorithms that do not depend on them.
    """
    zeros = dict.fromkeys(_core.cost_model(), 0.0)
    rows: list[Row] = []
    for collective, algorithm, nbytes, seconds in measured:
        features = [predict(collective, algorithm, nbytes, node_of, {**zeros, name: 1.0}) for name in parameters]
        rows.append((features, seconds))
    return dict(zip(parameters, least_squares(rows), strict=True))
