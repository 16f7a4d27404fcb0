"""Modules that programs written for Horovod know and this version does not have yet: whoever asks for one is told so.

A finder at the end of ``sys.meta_path`` answers for them; once there is a module of such a name it is never asked.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_ELASTIC = "elastic training"
ABSENT = {
    "horovod.elastic": _ELASTIC,
}
"""Name of the module to what it would be for."""

IN_FACES = frozenset(
    ("init", "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size", "allreduce", "allgather")
    + ("broadcast", "barrier", "join", "DistributedOptimizer", "broadcast_parameters", "Average", "Sum", "Compression")
)
"""What is asked for in the package itself by who writes ``import horovod as hvd``."""


def _refusal(module: str) -> str:
    return f"{module} is not in this version of Horovod yet: {ABSENT[module]}"


class AbsentModules:
    """The finder: raises ModuleNotFoundError that says so for what is in ABSENT, also while searching for a part.
    ``importlib.util.find_spec``, by which programs look whether a module is there, gets None as of any other."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in ABSENT and not _only_looked_for():
            # Without `name=`: `from horovod.torch import elastic` would go on and say less.
            raise ModuleNotFoundError(_refusal(name))
        return None


def _only_looked_for() -> bool:
    """Does somebody ask by ``importlib.util.find_spec``, and not by an import?"""
    frame = sys._getframe(1).f_back  # of the function that asks all finders; behind it, who wants to know
    asker = frame.f_back if frame is not None else None
    return asker is not None and asker.f_globals.get("__name__") == "importlib.util"


def install() -> None:
    """Put the finder in its place; once is enough."""
    if AbsentModules not in sys.meta_path:
        sys.meta_path.append(AbsentModules)


def no_attribute(module: str, name: str) -> AttributeError:
    """What the ``__getattr__`` of a module raises for an attribute that it does not have."""
    full = f"{module}.{name}"
    if full in ABSENT:
        return AttributeError(_refusal(full))
    where = ""
    if module == "horovod" and name in IN_FACES:
        where = f"; {name} is in the modules for frameworks: `import horovod.torch as hvd`, say"
    return AttributeError(f"module {module!r} has no attribute {name!r}{where}")
