"""Result file of a worker of `horovod.run`, which contains the result or the exception that ended the worker.

    pickled value or exception | description (msgpack) | length of the description (4 bytes, big-endian)

If the description at the end is missing or incomplete, the worker was killed.
"""

from __future__ import annotations

import os
import pickle
import struct
import traceback
from typing import Any, Literal

import msgspec

from horovod.common.contract import pickling
from horovod.runner.base.errors import OutcomeError

TRACEBACK_LIMIT = 1 << 16  # The middle of a longer traceback is dropped (characters).
_LENGTH = struct.Struct(">I")
_BUFFER = 1 << 20


class Description(msgspec.Struct, frozen=True):
    """Description at the end of a result file.

    Attributes:
        kind: Tells whether the file contains a value or an exception.
        type_name: Type of the value or exception.
        body: Size of the pickle at the start of the file in bytes, or 0 if there is none.
        traceback: Traceback of the exception.
        why: Reason why there is no pickle.
    """

    kind: Literal["value", "exception"]
    type_name: str
    body: int
    traceback: str = ""
    why: str = ""


def write_value(fd: int, value: object, rank: int) -> None:
    """Write the function's result to the file. Raises OutcomeError if it cannot be pickled or is too large."""
    try:
        _write(fd, value, lambda body: Description("value", type_name(value), body))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise OutcomeError(
            f"the result of rank {rank}, of type {type_name(value)}, cannot be sent back: {reason}"
        ) from error


def write_exception(fd: int, error: BaseException, text: str) -> None:
    """Write an exception and its traceback to the file. Write only the traceback if the exception cannot be pickled."""
    name = type_name(error)
    try:
        pickle.loads(pickling.dumps(error))  # Many exceptions can be pickled but not unpickled.
        _write(fd, error, lambda body: Description("exception", name, body, text))
    except Exception as trouble:
        why = f"{type(trouble).__name__}: {trouble}"
        _write(fd, None, lambda _: Description("exception", name, 0, text, why))


def _write(fd: int, value: object, describe: Any) -> None:
    """Pickle the value directly into the file, because memory might not suffice for a second copy."""
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    with open(fd, "wb", buffering=_BUFFER, closefd=False) as file:
        pickling.dump(value, file)
        description = msgspec.msgpack.encode(describe(file.tell()))
        file.write(description)
        file.write(_LENGTH.pack(len(description)))


def describe(data: bytes | bytearray) -> Description | None:
    """Return the description at the end of the file, or None if the worker ended before writing it."""
    view = memoryview(data)
    if len(view) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(view[-_LENGTH.size :])
    if len(view) < length + _LENGTH.size:
        return None
    try:
        return msgspec.msgpack.decode(view[-_LENGTH.size - length : -_LENGTH.size], type=Description)
    except msgspec.MsgspecError:
        return None


def load(data: bytes | bytearray, description: Description, rank: int) -> Any:
    """Return the value or exception from the file. Raises OutcomeError if it cannot be unpickled."""
    try:
        return pickle.loads(memoryview(data)[: description.body])
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        what = "result" if description.kind == "value" else "exception"
        raise OutcomeError(
            f"the {what} of rank {rank}, of type {description.type_name}, cannot be unpickled here: {reason}"
        ) from error


def type_name(value: object) -> str:
    """Return the name of the value's type, with its module unless it is a builtin type."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def format_traceback(error: BaseException) -> str:
    """Return the traceback as Python prints it, cut to TRACEBACK_LIMIT characters."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if len(text) > TRACEBACK_LIMIT:
        half = TRACEBACK_LIMIT // 2
        text = f"{text[:half]}\n    ... ({len(text) - 2 * half} characters left out)\n{text[-half:]}"
    return text
