"""WholeFiles: files that are a record each."""

from horovod.data import paths as files
from horovod.data.source import Source, check_count


class WholeFiles(Source):
    """Each file is a record, ``(path, bytes)``: folders of images."""

    digest_of = "the files' names, sizes and order, and of how many records each block has, by block_files"

    def __init__(self, paths: files.Paths, block_files: int = 32) -> None:
        """``paths``: a file; a folder; a pattern with ``*``; a row of names; or several of these. ``block_files``: how
        many are read and held at once.

        Raises ValueError naming files that are not there, or not to be read.
        """
        check_count("block_files", block_files, 1)
        found = [(path, files.size_of(path)) for path in files.find(paths)]
        self._blocks = [found[begin : begin + block_files] for begin in range(0, len(found), block_files)]
        self.lengths = [len(block) for block in self._blocks]

    def made_of(self) -> list[tuple[str, int]]:
        return [one for block in self._blocks for one in block]

    def load(self, block: int) -> list[tuple[str, bytes]]:
        return [(path, files.read(path, size, 0, size)) for path, size in self._blocks[block]]
