"""Import hooks that explain why a module of Horovod cannot be imported.

``AbsentModules`` explains missing modules that exist in other versions, and finds moved modules under their former
names. ``NativeExtension`` explains why ``horovod._core`` cannot be loaded. pip rejects wheels for another platform or
Python, but files for another platform can still be installed through ``PYTHONPATH``, a copied image, or ``pip install
--target --platform``. Python would then only report "cannot import name", or a missing symbol.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

NATIVE = "horovod._core"
_ELASTIC = "elastic training"
ABSENT = {
    "horovod.elastic": _ELASTIC,
}
"""Purpose of each absent module, by the module's name."""

MOVED = {
    "horovod.common.elastic.batch": "horovod.common.elastic.order",
    "horovod.common.evaluation": "horovod.common.training_loop.evaluation",
    "horovod.data.tars": "horovod.data.files",
    "horovod.torch.elastic.before_forward": "horovod.torch.elastic.state",
}
"""Present names of modules whose classes can be in pickles of earlier versions, by their former names."""

IN_FRONTENDS = frozenset(
    ("init", "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size", "allreduce", "allgather")
    + ("broadcast", "barrier", "join", "DistributedOptimizer", "broadcast_parameters", "Average", "Sum", "Compression")
)
"""Names that programs look for in the package itself when they ``import horovod as hvd``."""


def _refusal(module: str) -> str:
    return f"{module} is not in this version of Horovod yet: {ABSENT[module]}"


# Do not subclass importlib.abc.Loader, because importing importlib.abc is slow.
class _Moved:
    """Loader for a module that is imported under its former name."""

    create_module = staticmethod(lambda spec: None)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(MOVED[module.__name__])


class AbsentModules:
    """Finder that raises ModuleNotFoundError with an explanation for modules in ABSENT.

    It is the last entry of ``sys.meta_path``, so Python asks it only for modules that no other finder has found.
    Programs that use ``importlib.util.find_spec`` to test whether a module exists get None, as for any missing module.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in MOVED:
            return ModuleSpec(name, _Moved)  # type: ignore[arg-type]
        if name in ABSENT and not _only_looked_for():
            # Do not pass ``name=``. With it, `from horovod.torch import elastic` would raise a less informative error.
            raise ModuleNotFoundError(_refusal(name))
        return None


def _only_looked_for() -> bool:
    """Return True if ``importlib.util.find_spec`` has called the finder, and False for an import statement."""
    # Skip two frames, which belong to importlib. The next frame is in importlib.util if find_spec() was called.
    frame = sys._getframe(1).f_back
    asker = frame.f_back if frame is not None else None
    return asker is not None and asker.f_globals.get("__name__") == "importlib.util"


class NativeExtension:
    """Import finder that explains why the extension cannot be loaded.

    It is the first entry of ``sys.meta_path`` and uses the others to locate the extension.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != NATIVE:
            return None
        others = [finder for finder in sys.meta_path if not _is_ours(finder) and hasattr(finder, "find_spec")]
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target)) is not None), None)
        # Import lazily, because only imports of the extension need this module.
        from horovod import _native_words

        return _native_words.checked(name, spec)


def _is_ours(finder: object) -> bool:
    """Return True if ``finder`` is one of this module, even if the module has been reloaded since."""
    return getattr(finder, "__module__", None) == __name__


def install() -> None:
    """Install the finders. Can be called repeatedly."""
    others = [finder for finder in sys.meta_path if not _is_ours(finder)]
    sys.meta_path[:] = [NativeExtension, *others, AbsentModules]


def no_attribute(module: str, name: str) -> AttributeError:
    """Create the AttributeError that a module's ``__getattr__`` raises for a missing attribute."""
    full = f"{module}.{name}"
    if full in ABSENT:
        return AttributeError(_refusal(full))
    where = ""
    if module == "horovod" and name in IN_FRONTENDS:
        where = f"; {name} is in the modules for frameworks: `import horovod.torch as hvd`, say"
    return AttributeError(f"module {module!r} has no attribute {name!r}{where}")
