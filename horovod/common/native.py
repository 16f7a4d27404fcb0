"""Where the native libraries of faces lie that are no Python modules."""

import importlib.util
from pathlib import Path

__all__ = ["library_path"]


def library_path(name: str) -> Path:
    """The file of the library that is installed as ``name``, for example "horovod.tensorflow._tf".

    Asks Python's import system, because in an editable install the built files lie elsewhere than the sources.
    Raises ImportError when there is none.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(f"the native library {name} is not part of this installation of horovod")
    return Path(spec.origin)
