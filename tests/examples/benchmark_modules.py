"""Modules of benchmarks/, which are programs and no package, for tests of their parts."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def load(name: str) -> ModuleType:
    """``name``: its file in the folder, without the suffix. Made anew by each call."""
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name.replace('/', '_')}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def loaded(name: str, *beside: str) -> Iterator[ModuleType]:
    """A program that imports the modules ``beside`` it, which are forgotten afterwards."""
    added = set(beside) - set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    try:
        yield load(name)
    finally:
        sys.path.remove(str(FOLDER))
        for module in added:
            sys.modules.pop(module, None)
