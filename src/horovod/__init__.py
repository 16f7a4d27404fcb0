"""Distributed training with allreduce.

Each framework has its own module, for example ``import horovod.torch as hvd``.
"""

from typing import Any

from horovod import _absent
from horovod._version import __version__

__all__ = ["__version__", "run"]  # noqa: F822

_absent.install()


def __getattr__(name: str) -> Any:
    # Import the launcher lazily, because a process that only trains does not need it. Store the function in this
    # module, so that later accesses skip __getattr__.
    if name == "run":
        from horovod.runner import run

        globals()["run"] = run
        return run
    raise _absent.no_attribute(__name__, name)
