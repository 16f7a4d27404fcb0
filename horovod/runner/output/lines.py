"""From bytes as they come out of a pipe to whole lines."""

from __future__ import annotations

LINE_LIMIT = 16 << 20  # a line is held until it is whole; one that gets longer is cut here


class LineCutter:
    """Cuts one stream of one rank into lines, each ended by \\n. Bytes are passed on as they are."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0

    @property
    def inside(self) -> bool:
        """Has a line begun?"""
        return bool(self._parts)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines completed by `data`, in which there is no \\r but before a \\n."""
        lines = data.splitlines(keepends=True)
        rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        if lines and self._parts:
            lines[0] = self.take() + lines[0]
        if rest:
            self._parts.append(rest)
            self._length += len(rest)
            if self._length > LINE_LIMIT:
                lines.append(self.take() + b"\n")
        return lines

    def take(self) -> bytes:
        """What is left without an end of line; it is gone then."""
        rest = b"".join(self._parts)
        self._parts = []
        self._length = 0
        return rest
