"""Job launcher: the `horovodrun` command (in `launch`) and the `horovod.run` function (in `api`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod.runner.api import run as run
    from horovod.runner.function.outcome import WorkerError as WorkerError

__all__ = ["WorkerError", "run"]


def __getattr__(name: str) -> Any:
    # Import the launcher on demand, because agents and workers import this package but do not need the launcher.
    if name == "run":
        from horovod.runner.api import run

        return run
    if name == "WorkerError":
        from horovod.runner.function.outcome import WorkerError

        return WorkerError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
