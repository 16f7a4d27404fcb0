"""MUNGE credentials, which only one user's processes on the machines of one cluster can create and open.

Slurm clusters provide MUNGE (auth/munge), so a user can pass the job key to other ranks without any setup. The payload
is encrypted, and only this user can open it. Each machine can open a credential once.
"""

import ctypes
import os
from typing import Any

from horovod.common.contract.private_files import Secret

_TTL_OPTION, _UID_OPTION = 4, 9  # MUNGE_OPT_TTL, MUNGE_OPT_UID_RESTRICTION
_TTL_SECONDS = 300


class MungeError(RuntimeError):
    """Error if the library or daemon is missing, or if the credential belongs to another user."""


def available() -> bool:
    """Return True if this process can create MUNGE credentials."""
    try:
        return bool(encode(b""))
    except MungeError:
        return False


def encode(payload: bytes) -> bytes:
    """Create a credential from which only this user's processes can get ``payload``. Raises MungeError on failure."""
    library = _load()
    context = library.munge_ctx_create()
    if not context:
        raise MungeError("munge: out of memory")
    text = ctypes.c_char_p()
    try:
        library.munge_ctx_set(ctypes.c_void_p(context), _UID_OPTION, ctypes.c_uint(os.geteuid()))
        library.munge_ctx_set(ctypes.c_void_p(context), _TTL_OPTION, ctypes.c_int(_TTL_SECONDS))
        code = library.munge_encode(ctypes.byref(text), ctypes.c_void_p(context), payload, len(payload))
        _check(library, code)
        return text.value or b""
    finally:
        if text:
            _free(text)
        library.munge_ctx_destroy(ctypes.c_void_p(context))


def decode(credential: bytes) -> Secret:
    """Return a credential's payload. Raises MungeError if it was opened before or another user has created it."""
    library = _load()
    payload, length = ctypes.c_void_p(), ctypes.c_int()
    uid, gid = ctypes.c_uint(), ctypes.c_uint()
    code = library.munge_decode(
        credential, None, ctypes.byref(payload), ctypes.byref(length), ctypes.byref(uid), ctypes.byref(gid)
    )
    try:
        _check(library, code)
        if uid.value != os.geteuid():
            raise MungeError(f"munge: the credential must be of user {os.geteuid()}, got one of user {uid.value}")
        return Secret(ctypes.string_at(payload, length.value) if payload else b"")
    finally:
        if payload:
            _free(payload)


def _check(library: Any, code: int) -> None:
    if code != 0:
        library.munge_strerror.restype = ctypes.c_char_p
        raise MungeError(f"munge: {library.munge_strerror(code).decode(errors='replace')}")


def _load() -> Any:
    import ctypes.util  # slow import, rarely needed

    try:
        library = ctypes.CDLL(ctypes.util.find_library("munge") or "libmunge.so.2")
    except OSError as error:
        raise MungeError(f"munge: {error}") from None
    library.munge_ctx_create.restype = ctypes.c_void_p
    return library


def _free(pointer: Any) -> None:
    ctypes.CDLL(None).free(pointer)
