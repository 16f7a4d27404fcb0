"""Search for those native libraries of the frontends that are not Python modules."""

import importlib.util
from pathlib import Path

__all__ = ["library_path"]


def library_path(name: str) -> Path:
    """Return the path of the library installed as ``name``, for example "horovod.tensorflow._tf".

    This asks Python's import system, because an editable install keeps built files apart from the sources.

    Raises:
        ImportError: If the library is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(f"the native library {name} is not part of this installation of horovod")
    return Path(spec.origin)
