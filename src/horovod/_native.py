"""Import hook for ``horovod._core``, the native extension, that explains why it cannot be loaded and what to do.

pip refuses wheels that do not match. Files can still end up in the wrong place, through ``PYTHONPATH``, in a copied
image, or through ``pip install --target --platform``. Python would then only report "cannot import name", or a symbol.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

NAME = "horovod._core"


def _is_ours(finder: object) -> bool:
    """Return True for this module's finder, even if the module was reloaded."""
    return getattr(finder, "__module__", None) == __name__ and getattr(finder, "__qualname__", None) == "Finder"


class Finder:
    """First finder in ``sys.meta_path``.

    It finds the extension through the other finders, and explains why it cannot be loaded.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != NAME:
            return None
        others = [finder for finder in sys.meta_path if not _is_ours(finder) and hasattr(finder, "find_spec")]
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target)) is not None), None)
        from horovod import _native_words  # only needed for the extension

        return _native_words.checked(name, spec)


def install() -> None:
    """Install the finder; idempotent."""
    sys.meta_path[:] = [Finder, *(finder for finder in sys.meta_path if not _is_ours(finder))]
