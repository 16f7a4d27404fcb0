"""Import hook that explains why the native extension ``horovod._core`` cannot be loaded.

pip rejects wheels for another platform or Python. Files for another platform can still be installed through
``PYTHONPATH``, a copied image, or ``pip install --target --platform``. Python would then only report "cannot import
name", or a missing symbol.
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
    """Return True if ``finder`` is the finder of this module, even if the module has been reloaded since."""
    return getattr(finder, "__module__", None) == __name__ and getattr(finder, "__qualname__", None) == "Finder"


class Finder:
    """Import finder that explains why the extension cannot be loaded.

    The finder uses the other finders of ``sys.meta_path`` to locate the extension.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != NAME:
            return None
        others = [finder for finder in sys.meta_path if not _is_ours(finder) and hasattr(finder, "find_spec")]
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target)) is not None), None)
        # Import lazily, because only imports of the extension need this module.
        from horovod import _native_words

        return _native_words.checked(name, spec)


def install() -> None:
    """Install the finder at the front of ``sys.meta_path``. Can be called repeatedly."""
    sys.meta_path[:] = [Finder, *(finder for finder in sys.meta_path if not _is_ours(finder))]
