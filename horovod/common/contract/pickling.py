"""Objects as bytes: by cloudpickle, which takes functions and classes of scripts too, with the names of their files."""

import collections
import io
import pickle
from types import CodeType
from typing import IO, Any, ClassVar

import cloudpickle

_NO_NAME = "<dynamic-code>"  # what cloudpickle 3.1.3 and later write in place of the name of a file


def _code(code: CodeType) -> tuple[Any, tuple[Any, ...]]:
    """With the name of its file, without which tracebacks on other ranks would not show the user's lines."""
    make, parts = cloudpickle.CloudPickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if part == _NO_NAME else part for part in parts)


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    dispatch_table: ClassVar[Any] = collections.ChainMap({CodeType: _code}, cloudpickle.CloudPickler.dispatch_table)


def dump(value: object, file: IO[bytes]) -> None:
    """Into a binary file, for ``pickle.load``. Raises what pickling and writing raise."""
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)


def dumps(value: object) -> bytes:
    """For ``pickle.loads``. Raises what pickling raises."""
    stream = io.BytesIO()
    dump(value, stream)
    return stream.getvalue()
