"""Job launcher: the `horovodrun` command (`launch`) and `horovod.run` (`api`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod.runner.api import run as run
    from horovod.runner.function.worker_error import WorkerError as WorkerError

__all__ = ["WorkerError", "run"]


def __getattr__(name: str) -> Any:
    # Import the launcher on demand. Agents and workers import this package too and do not need it.
    if name == "run":
        from horovod.runner.api import run

        return run
    if name == "WorkerError":
        from horovod.runner.function.worker_error import WorkerError

        return WorkerError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
