"""Distributed training with allreduce. Frameworks live in their own modules, for example ``import horovod.torch as
hvd``.
"""

from typing import Any

from horovod import _native
from horovod._version import __version__
from horovod.common import absent

__all__ = ["__version__", "run"]

absent.install()
_native.install()


def __getattr__(name: str) -> Any:
    # Loaded on demand: a worker that only trains needs neither the launcher nor what it imports. A module attribute is
    # looked up here only once, because the import of a name from a package binds nothing in this module; so bind it.
    if name == "run":
        from horovod.runner import run

        globals()["run"] = run
        return run
    raise absent.no_attribute(__name__, name)
