"""Modules that only the process that uses them imports.

A test module names them at its top, and its functions, which run in workers, use them like any module. The process that
collects tests imports none of them: it may have another backend of Keras, or lack the framework.
"""

import importlib
from typing import Any


class Later:
    """A module that is imported when one of its public names is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks for marks on everything in a test module
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)

    def __reduce__(self) -> tuple[type["Later"], tuple[str]]:
        return Later, (self._name,)
