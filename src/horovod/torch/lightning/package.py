"""Selection of the Lightning package: ``lightning.pytorch``, or its alias ``pytorch_lightning``."""

import importlib
from typing import Any

NAMES = ("lightning.pytorch", "pytorch_lightning")


def package_of(who: str, model: Any = None) -> Any:
    """Return the Lightning package to which a LightningModule belongs. For other values, return the installed one.

    Raises:
        ImportError: Lightning is not installed. The message says that ``who`` needs it.
    """
    for kind in type(model).__mro__:
        for name in NAMES:
            if kind.__module__.startswith(f"{name}."):
                return importlib.import_module(name)
    for name in NAMES:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            reason = error
    raise ImportError(
        f"{who} needs Lightning 2, which cannot be imported ({reason}); install it with: pip install lightning"
    ) from reason


def is_module(model: Any) -> bool:
    """Return True if ``model`` is a LightningModule."""
    return any(kind.__name__ == "LightningModule" and kind.__module__.startswith(NAMES) for kind in type(model).__mro__)
