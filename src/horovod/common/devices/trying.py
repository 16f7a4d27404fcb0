"""Check that CUDA initializes on this host and that processes can share GPU memory.

The test (``trial``) runs in separate processes, so that CUDA is not initialized in the calling process.
"""

import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from horovod.common.contract import boot
from horovod.common.devices import trial

SECONDS: Final = 60.0
_PROGRAM: Final = str(Path(trial.__file__))


class Tried(NamedTuple):
    """Results of the CUDA self-test. Each field contains the reason why a feature does not work, or "" if it works."""

    cuda: str = ""
    """Reason why CUDA does not start."""
    ipc: str = ""
    """Reason why a process cannot read the GPU memory of another process."""


def try_cuda(driver: str, seconds: float = SECONDS) -> Tried:
    """Run the CUDA self-test (``trial``). Never raises.

    The test takes a few seconds and a few hundred MB of the first GPU's memory.
    """
    deadline = time.monotonic() + seconds
    try:
        owner = _start("own", driver)
    except OSError as error:
        return Tried(cuda=f"it cannot be tried: {error}")
    try:
        started = _line(owner, deadline)
        if started != "ok started":
            return Tried(cuda=_reason(started))
        handle = _line(owner, deadline)
        if not handle.startswith("ok "):
            return Tried(ipc=_reason(handle))
        other = _start("open", driver, handle.removeprefix("ok "))
        try:
            answer = _line(other, deadline)
        finally:
            _end(other, deadline)
        return Tried(ipc="" if answer == "ok read" else _reason(answer))
    except OSError as error:
        return Tried(ipc=f"it cannot be tried: {error}")
    finally:
        _end(owner, deadline)


def _start(*arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, *boot.standalone_arguments(_PROGRAM, *arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )


def _line(process: "subprocess.Popen[bytes]", deadline: float) -> str:
    """Return the next line of a process's output. On a timeout, return "no" followed by the reason."""
    assert process.stdout is not None
    text = b""
    while not text.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            return "no nothing comes of it: it takes longer than it should"
        piece = process.stdout.read(1)
        if not piece:
            return f"no the process that tried it ended with {process.wait()}"
        text += piece
    return text.decode(errors="replace").strip()


def _reason(line: str) -> str:
    return line.removeprefix("no ")[:2000]


def _end(process: "subprocess.Popen[bytes]", deadline: float) -> None:
    """End the process by closing its stdin. Kill the process if it hangs in the driver."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    for patience in (max(0.1, min(5.0, deadline - time.monotonic())), 5.0):
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            process.kill()  # SIGKILL has no effect while the process is blocked in the kernel
