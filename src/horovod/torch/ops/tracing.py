"""PyTorch tool support: torch.profiler events, and exclusion from torch.compile.

torch.profiler: ``hvd.submit NAME`` marks the submission of an operation to the engine; ``hvd.wait NAME`` covers the
time that the program waits for it. A blocking call records only ``hvd.wait``. Events are recorded while a profiler runs
in the calling thread. Without a profiler, the only overhead is the check for one.

torch.compile: A collective depends on other ranks, so a compiler must neither trace it nor keep its result. TorchDynamo
does not trace functions of the packages in its skip list: the graph of a compiled function breaks at each Horovod call.
The list is extended when TorchDynamo is imported. That import takes seconds, so it is left to programs that compile.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch.autograd import profiler


class _Asking:
    """Replacement for PyTorch's profiler module in PyTorch versions without ``_is_profiler_enabled``."""

    _is_profiler_enabled = property(lambda _: torch.autograd._profiler_enabled())


state: Any = profiler if hasattr(profiler, "_is_profiler_enabled") else _Asking()
"""Object whose ``_is_profiler_enabled`` is True while a profiler runs in this process.

It is an attribute rather than a function because every operation reads it twice.
"""


def record_submission(work: Any) -> None:
    """Record a profiler event that marks the submission of ``work``."""
    with torch.profiler.record_function(f"hvd.submit {_name(work)}"):
        pass


def record_wait(work: Any) -> Any:
    """Return a context manager that records a profiler event for a wait."""
    return torch.profiler.record_function(f"hvd.wait {_name(work)}")


def _name(work: Any) -> str:
    # Omit the numbers of unnamed operations, which change with each step.
    return work.name or "noname"


# Modules that contain TorchDynamo's skip list, in different versions of PyTorch. Each has a function `add`.
_LISTS = ("torch._dynamo.trace_rules", "torch._dynamo.skipfiles")
_PACKAGE = "horovod"


class _Watch(MetaPathFinder):
    """Import hook that adds this package to TorchDynamo's skip list once the module with the list is loaded."""

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


def exclude_from_compile() -> None:
    """Add this package to TorchDynamo's skip list now or, if TorchDynamo is not loaded yet, when it is imported."""
    loaded = [sys.modules[name] for name in _LISTS if name in sys.modules]
    for module in loaded:
        _add_to(module)
    if not loaded:
        sys.meta_path.insert(0, _Watch())
