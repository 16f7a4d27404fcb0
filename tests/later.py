"""Modules imported only in the process that uses them.

A test module names them at its top; its functions, which run in workers, use them like any other module. The
process that collects tests never imports them: it may use another Keras backend or lack the framework.
"""

import importlib
import importlib.util
import shutil
from typing import Any

import pytest


class Later:
    """A module that is imported when one of its public names is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks up marks on everything in a test module
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)

    def __reduce__(self) -> tuple[type["Later"], tuple[str]]:
        return Later, (self._name,)


def need(*names: str) -> None:
    """Skip the calling test or test module if a package is not installed, without importing it."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)


def need_spark() -> None:
    """Skip the calling test if pyspark or Java is missing."""
    need("pyspark")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed (scripts/install-system-packages.sh)")
