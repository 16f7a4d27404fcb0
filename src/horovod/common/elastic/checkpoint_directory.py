"""Interpretation of a checkpoint directory given as a path or URL."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from horovod.common.elastic.checkpoint_files import OWN
from horovod.common.elastic.checkpoint_objects import Objects, without_password
from horovod.common.elastic.checkpoint_place import Folder, Place
from horovod.common.elastic.checkpoint_trust import Trust

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*"
_URL = re.compile(f"{_SCHEME}(?:::{_SCHEME})*://")  # such as simplecache::s3://, while run::3 is a path
_FILE = re.compile(r"file:/+")
_LOST_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")


def place_of(directory: str | os.PathLike[str], options: Mapping[str, Any] | None = None, trust: Trust = OWN) -> Place:
    """Return the place that a directory argument refers to.

    Args:
        directory: Path or URL.
        options: Options for fsspec with a URL.
        trust: Rules for which checkpoints are read.

    Raises:
        ValueError: If the directory is a file or otherwise invalid.
        ImportError: If a package that the URL needs is missing; names it.
    """
    text = os.fspath(directory)
    if not isinstance(text, str) or not text:
        raise ValueError(f"directory must be the path of a directory or a URL, got {directory!r}")
    if _FILE.match(text):
        text = _FILE.sub("/", text)
    elif isinstance(directory, str) and _URL.match(text):
        return Objects(text, options or {}, trust)
    elif not isinstance(directory, str) and _LOST_SLASH.match(text):
        raise ValueError(
            f"directory must be a string if it is a URL, got {without_password(repr(directory))}, which has lost "
            "a slash because a Path makes one slash of two"
        )
    if options:
        raise ValueError(
            f"storage_options are given for the directory {text!r}, but they are for URLs, as s3://bucket/directory"
        )
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise ValueError(f"directory must be a directory or a new name, got {text!r}, which is a file")
    return Folder(path, trust)
