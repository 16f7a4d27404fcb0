"""Distributed training with allreduce.

Each framework has its own module, for example ``import horovod.torch as hvd``.
"""

from typing import Any

from horovod import _native
from horovod._version import __version__
from horovod.common import absent

__all__ = ["__version__", "run"]

absent.install()
_native.install()


def __getattr__(name: str) -> Any:
    # Loaded on demand, because a worker that only trains needs neither the launcher nor its imports. Importing a name
    # from a package does not bind it in this module, so bind it here to be asked only once.
    if name == "run":
        from horovod.runner import run

        globals()["run"] = run
        return run
    raise absent.no_attribute(__name__, name)
