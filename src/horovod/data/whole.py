"""WholeFiles: files that are one record each."""

from horovod.data import paths as files
from horovod.data.source import Source, check_count


class WholeFiles(Source):
    """Source in which each file is a record, ``(path, bytes)``; for example for directories of images."""

    digest_of = "the files' names, sizes and order, and of how many records each block has, by block_files"

    def __init__(self, paths: files.Paths, block_files: int = 32) -> None:
        """Find the files and their sizes.

        Args:
            paths: A file, a directory, a pattern with ``*``, a numbered range of names, or several of these.
            block_files: Number of files that are read and held at once.

        Raises:
            ValueError: If a file is missing or unreadable; names it.
        """
        check_count("block_files", block_files, 1)
        found = [(path, files.size_of(path)) for path in files.find(paths)]
        self._blocks = [found[begin : begin + block_files] for begin in range(0, len(found), block_files)]
        self.lengths = [len(block) for block in self._blocks]

    def made_of(self) -> list[tuple[str, int]]:
        return [one for block in self._blocks for one in block]

    def load(self, block: int) -> list[tuple[str, bytes]]:
        return [(path, files.read(path, size, 0, size)) for path, size in self._blocks[block]]
