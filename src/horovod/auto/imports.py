"""Import hook: change PyTorch and Keras right after the script has imported them."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

_CHANGES = {"torch": "horovod.auto.torch", "keras": "horovod.auto.keras"}


class _Loader(importlib.abc.Loader):
    def __init__(self, plain: Any, change: str) -> None:
        self._plain, self._change = plain, change

    def create_module(self, spec: Any) -> Any:
        return self._plain.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self._plain.exec_module(module)
        importlib.import_module(self._change).install()

    def __getattr__(self, name: str) -> Any:  # such as get_data, which importlib.resources uses
        return getattr(self._plain, name)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        change = _CHANGES.pop(fullname, None)  # the search below finds the module's own loader
        spec = importlib.util.find_spec(fullname) if change else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, change or "")
        return spec


def install() -> None:
    """Change the frameworks that are imported from now on, and those that are already imported."""
    sys.meta_path.insert(0, _Finder())
    for name in [name for name in _CHANGES if name in sys.modules]:
        importlib.import_module(_CHANGES.pop(name)).install()
