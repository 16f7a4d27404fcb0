"""What an outlet of figures is, see ``outlets.py``."""

from collections.abc import Callable
from typing import Any, Protocol

Figures = Callable[[], dict[str, Any]]
"""Those of ``Account.job``."""


class Outlet(Protocol):
    """One of them."""

    def write(self) -> None:
        """There is something new. Raises nothing."""

    def close(self) -> None:
        """The job is over."""

    def leave_in_child(self) -> None:
        """In a forked child: closes what it has inherited."""
