"""Optimizer variables of Keras whose values belong to a single rank.

A distributed optimizer that reduces gradients only after Keras has accumulated them has accumulators that differ
between ranks during an accumulation. They must be neither broadcast nor compared.
"""

from collections.abc import Iterable
from typing import Any

_MARK = "_hvd_own"


def mark_own(variables: Iterable[Any]) -> None:
    """Mark variables as belonging to a single rank; None entries are skipped."""
    for variable in variables:
        if variable is not None:
            setattr(variable, _MARK, True)


def is_own(variable: Any) -> bool:
    """Return True if ``variable`` was marked by ``mark_own``."""
    return getattr(variable, _MARK, False) is True
