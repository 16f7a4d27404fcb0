"""Variables of Keras whose values belong to one rank alone, although the variables belong to an optimizer.

A distributed optimizer that reduces gradients only when Keras has accumulated them has accumulators that differ between
ranks in the middle of an accumulation. To broadcast or compare them is wrong.
"""

from collections.abc import Iterable
from typing import Any

_MARK = "_hvd_own"


def mark_own(variables: Iterable[Any]) -> None:
    """Mark variables as those of one rank. Entries that are None are left out."""
    for variable in variables:
        if variable is not None:
            setattr(variable, _MARK, True)


def is_own(variable: Any) -> bool:
    """Return True if ``variable`` was marked by ``mark_own``."""
    return getattr(variable, _MARK, False) is True
