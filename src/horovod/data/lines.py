"""LineFiles: the lines of text files."""

from collections.abc import Iterator

from horovod.data.ranges import ByteRanges, Range


class LineFiles(ByteRanges):
    r"""Source whose records are the lines of files, as ``bytes`` without the line end (``\n`` or ``\r\n``).

    For text, JSON lines, and CSV without a header.
    """

    @staticmethod
    def index(path: str, size: int, block_bytes: int) -> Iterator[Range]:
        with open(path, "rb") as file:
            begin = 0
            while data := file.read(block_bytes):
                if not data.endswith(b"\n"):
                    data += file.readline()
                end = begin + len(data)
                yield Range(begin, end, data.count(b"\n") + (not data.endswith(b"\n")))
                begin = end

    @staticmethod
    def parse(data: bytes) -> list[bytes]:
        lines = data.split(b"\n")
        if data.endswith(b"\n"):
            lines.pop()
        return [line.removesuffix(b"\r") for line in lines]
