"""Keep torch.compile out of Horovod's functions.

A collective depends on what other ranks do, so a compiler must neither trace it nor keep its result. TorchDynamo runs
functions of the directories in its skip list as they are: a compiled function breaks once at each call of ours. The
list is extended when TorchDynamo is imported, which takes seconds and is therefore left to programs that compile.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Which module has the list depends on the version of PyTorch; each has the function `add`.
_LISTS = ("torch._dynamo.trace_rules", "torch._dynamo.skipfiles")
_PACKAGE = "horovod"


class _Watch(MetaPathFinder):
    """Finds a module with a skip list by the other finders, and adds the package when the module has been loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _LISTS:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            _after_loading(spec.loader)
        return spec


def _after_loading(loader: Any) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        _add_to(module)

    loader.exec_module = exec_module


def _add_to(module: Any) -> None:
    if hasattr(module, "add"):
        module.add(_PACKAGE)


def install() -> None:
    """Add the package to TorchDynamo's skip list, now or when TorchDynamo is imported. Called once, by the package."""
    loaded = [sys.modules[name] for name in _LISTS if name in sys.modules]
    for module in loaded:
        _add_to(module)
    if not loaded:
        sys.meta_path.insert(0, _Watch())
