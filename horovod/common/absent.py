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
    "horovod.common.elastic": _ELASTIC,
    "horovod.elastic": _ELASTIC,
    "horovod.keras.elastic": _ELASTIC,
    "horovod.runner.elastic": _ELASTIC,
    "horovod.tensorflow.elastic": _ELASTIC,
    "horovod.tensorflow.keras.elastic": _ELASTIC,
    "horovod.torch.elastic": _ELASTIC,
    "horovod.jax": "JAX without Keras (horovod.keras works with Keras on JAX)",
    "horovod.mxnet": "MXNet",
    "horovod.ray": "Ray",
    "horovod.spark": "Spark",
}
"""Name of the module to what it would be for."""


def _refusal(module: str) -> str:
    return f"{module} is not in this version of Horovod yet: {ABSENT[module]}"


class AbsentModules:
    """The finder: raises ModuleNotFoundError that says so for what is in ABSENT, also while searching for a part."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in ABSENT:
            # Without `name=`: `from horovod.torch import elastic` would go on and say less.
            raise ModuleNotFoundError(_refusal(name))
        return None


def install() -> None:
    """Put the finder in its place; once is enough."""
    if AbsentModules not in sys.meta_path:
        sys.meta_path.append(AbsentModules)


def no_attribute(module: str, name: str) -> AttributeError:
    """What the ``__getattr__`` of a module raises for an attribute that it does not have."""
    full = f"{module}.{name}"
    return AttributeError(_refusal(full) if full in ABSENT else f"module {module!r} has no attribute {name!r}")
