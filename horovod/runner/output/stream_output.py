"""Output of a job started by `horovod.run`: to `sys.stdout` and `sys.stderr`, whatever they are.

In a notebook, under pytest or inside `contextlib.redirect_stdout` these are objects of Python and not the process's
descriptors, and what is written to descriptor 1 appears elsewhere or nowhere.
"""

from __future__ import annotations

import codecs
import os
import sys
from typing import Any

from horovod.runner.output.output import OutputQueue, OutputSink


class StreamOutput(OutputSink):
    """Writes at once, in the calling thread, as `print` does: who replaced the streams decides how long that takes."""

    def __init__(self, stdout: Any, stderr: Any) -> None:
        """Text streams; None: what goes there is dropped."""
        self._streams = {1: stdout, 2: stderr}
        terminals = {n for n, stream in self._streams.items() if stream is None or _moves_back(stream)}
        super().__init__(terminals, stdout is stderr or terminals == set(self._streams))
        # A line may be so long that it was cut, then perhaps inside a character.
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
            if self._last not in (0, stream):  # streams that keep what they get would change the order
                self._flush(self._last)
            self._last = stream
            target.write(text)
        except (OSError, ValueError):  # ValueError: it is closed
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
    """Notebooks, too, show progress bars in place."""
    if type(stream).__module__.startswith(("ipykernel.", "google.colab.")):
        return True
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def standard_output() -> OutputSink:
    """The sink for what `sys.stdout` and `sys.stderr` are now. What they still keep is written first."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    if _is_descriptor(sys.stdout, sys.__stdout__, 1) and _is_descriptor(sys.stderr, sys.__stderr__, 2):
        return OutputQueue()
    return StreamOutput(sys.stdout, sys.stderr)


def _is_descriptor(stream: Any, original: Any, fd: int) -> bool:
    """Is the stream Python's own on this descriptor? One that has been put in its place may have a `fileno` as well, of
    a file that nobody looks at."""
    if stream is None or stream is not original:
        return False
    try:
        os.fstat(fd)
        return bool(stream.fileno() == fd)
    except (OSError, ValueError, AttributeError):
        return False
