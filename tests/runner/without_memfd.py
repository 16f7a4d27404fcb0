"""without_memfd.py COMMAND...: run a command with memfd_create failing with EPERM, as in strict sandboxes."""

import ctypes
import errno
import os
import struct
import sys

NUMBERS = {"x86_64": 319, "aarch64": 279}  # number of the system call
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # instructions of BPF
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


def forbid(number: int) -> None:
    """Forbid memfd_create in this process and its children. Raises OSError."""
    steps = [(LOAD, 0, 0, 0), (EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    described = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, 2, described, 0, 0)):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    forbid(NUMBERS[os.uname().machine])
    os.execvp(sys.argv[1], sys.argv[1:])
