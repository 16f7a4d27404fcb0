"""Splitting of bytes from a pipe into lines."""

from __future__ import annotations

LINE_LIMIT = 16 << 20  # maximum bytes held of an incomplete line; a longer one is split here


class LineCutter:
    r"""Splits one stream of one rank into lines that end with \n. Bytes are not changed."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0

    @property
    def inside(self) -> bool:
        """True if an incomplete line is held."""
        return bool(self._parts)

    def feed(self, data: bytes) -> list[bytes]:
        r"""Return the lines completed by `data`, in which every \r must precede a \n."""
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
        """Remove and return the incomplete line."""
        rest = b"".join(self._parts)
        self._parts = []
        self._length = 0
        return rest
