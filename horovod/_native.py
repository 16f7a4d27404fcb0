"""The import of ``horovod._core``, the native part: where it cannot be loaded, a sentence says why and what to do.

pip refuses wheels that do not fit. Files can be put where they do not fit all the same, by ``PYTHONPATH``, in an image
that was copied, or by ``pip install --target --platform``; then Python would say "cannot import name", or a symbol.
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
    """Also of a module that has been loaded anew since."""
    return getattr(finder, "__module__", None) == __name__ and getattr(finder, "__qualname__", None) == "Finder"


class Finder:
    """The first in ``sys.meta_path``; finds the native part through the others, and says why it is not to be had."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != NAME:
            return None
        others = [finder for finder in sys.meta_path if not _is_ours(finder) and hasattr(finder, "find_spec")]
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target)) is not None), None)
        from horovod import _native_words  # only where the native part is asked for

        return _native_words.checked(name, spec)


def install() -> None:
    """Put the finder in its place; once is enough."""
    sys.meta_path[:] = [Finder, *(finder for finder in sys.meta_path if not _is_ours(finder))]
