"""Interface of exporters of step figures (see ``outlets.py``)."""

from collections.abc import Callable
from typing import Any, Protocol

Figures = Callable[[], dict[str, Any]]
"""Returns the result of ``Account.job``."""


class Outlet(Protocol):
    """Exporter of step figures."""

    def write(self) -> None:
        """Export new figures. Raises nothing."""

    def close(self) -> None:
        """Close the exporter when the job is over."""

    def leave_in_child(self) -> None:
        """Close inherited resources in a forked child."""
