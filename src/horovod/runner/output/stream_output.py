"""Output of a job started by `horovod.run`, written to the current `sys.stdout` and `sys.stderr`.

In a notebook, under pytest or inside `contextlib.redirect_stdout`, these are Python objects and not the process's
descriptors. What is written to descriptor 1 would appear elsewhere or nowhere.
"""

from __future__ import annotations

import codecs
import os
import sys
from typing import Any

from horovod.runner.output.output import OutputQueue, OutputSink


class StreamOutput(OutputSink):
    """Output to text streams, written in the calling thread as by `print`, so that a slow stream blocks the job."""

    def __init__(self, stdout: Any, stderr: Any) -> None:
        """Store the text streams; None drops the output."""
        self._streams = {1: stdout, 2: stderr}
        terminals = {n for n, stream in self._streams.items() if stream is None or _moves_back(stream)}
        super().__init__(terminals, stdout is stderr or terminals == set(self._streams))
        # A long line may have been split inside a character.
        self._decoders = {number: codecs.getincrementaldecoder("utf-8")("replace") for number in self._streams}
        self._last = 0

    def _emit(self, stream: int, data: bytes) -> None:
        target = self._streams[stream]
        if target is None:
            return
        text = self._decoders[stream].decode(data)
        encoding = getattr(target, "encoding", None)
        if isinstance(encoding, str):
            text = text.encode(encoding, "backslashreplace").decode(encoding)
        try:
            if self._last not in (0, stream):  # flush the other stream, whose buffer would change the order
                self._flush(self._last)
            self._last = stream
            target.write(text)
        except (OSError, ValueError):  # ValueError: the stream is closed
            self._streams[stream] = None
            self.broken = True

    def _flush(self, stream: int) -> None:
        target = self._streams[stream]
        if target is not None and hasattr(target, "flush"):
            target.flush()

    def close(self) -> None:
        for stream in self._streams:
            try:
                self._flush(stream)
            except (OSError, ValueError):
                self.broken = True


def _moves_back(stream: Any) -> bool:
    """Return True if the stream can update progress bars in place, as terminals and notebooks can."""
    if type(stream).__module__.startswith(("ipykernel.", "google.colab.")):
        return True
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def standard_output() -> OutputSink:
    """Return the destination for the current `sys.stdout` and `sys.stderr`, after flushing them."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    if _is_descriptor(sys.stdout, sys.__stdout__, 1) and _is_descriptor(sys.stderr, sys.__stderr__, 2):
        return OutputQueue()
    return StreamOutput(sys.stdout, sys.stderr)


def _is_descriptor(stream: Any, original: Any, fd: int) -> bool:
    """Return True if the stream is Python's own for this descriptor.

    A replacement may have a `fileno` as well, but of a file that no user sees.
    """
    if stream is None or stream is not original:
        return False
    try:
        os.fstat(fd)
        return bool(stream.fileno() == fd)
    except (OSError, ValueError, AttributeError):
        return False
