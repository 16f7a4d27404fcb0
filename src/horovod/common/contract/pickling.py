"""Pickling with cloudpickle, which supports a script's functions and classes. Code objects keep their file names."""

import collections
import io
import pickle
from types import CodeType
from typing import IO, Any, ClassVar

import cloudpickle

_NO_NAME = "<dynamic-code>"  # cloudpickle 3.1.3 and later write this placeholder instead of the name of a source file


def _code(code: CodeType) -> tuple[Any, tuple[Any, ...]]:
    """Pickle a code object with its file name, so that tracebacks on other ranks show the user's source lines."""
    make, parts = cloudpickle.CloudPickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if part == _NO_NAME else part for part in parts)


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    dispatch_table: ClassVar[Any] = collections.ChainMap({CodeType: _code}, cloudpickle.CloudPickler.dispatch_table)


def dump(value: object, file: IO[bytes]) -> None:
    """Pickle ``value`` into a binary file that ``pickle.load`` can read."""
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)


def dumps(value: object) -> bytes:
    """Pickle ``value`` to bytes that ``pickle.loads`` can read."""
    stream = io.BytesIO()
    dump(value, stream)
    return stream.getvalue()
