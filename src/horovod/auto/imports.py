"""Import hook: change PyTorch and Keras right after the script has imported them."""

import importlib
import importlib.abc
import importlib.util
import sys
from typing import Any

_CHANGES = {"torch": "horovod.auto.torch", "keras": "horovod.auto.keras"}


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        change = _CHANGES.pop(fullname, None)  # the search below finds the module's own loader
        spec = importlib.util.find_spec(fullname) if change else None
        loader: Any = spec and spec.loader
        if loader is not None:
            plain = loader.exec_module
            loader.exec_module = lambda module: (plain(module), importlib.import_module(str(change)).install())
        return spec


def install() -> None:
    """Change the frameworks that are imported from now on, and those that are already imported."""
    sys.meta_path.insert(0, _Finder())
    for name in [name for name in _CHANGES if name in sys.modules]:
        importlib.import_module(_CHANGES.pop(name)).install()
