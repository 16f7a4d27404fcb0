"""Data sources for tests, and the files behind them."""

import io
import itertools
import tarfile

from horovod.data import ReadAhead, Source


class Numbers(Source):
    """The integers from 0 in blocks; records which blocks have been read."""

    def __init__(self, lengths):
        self.lengths = lengths
        self.read = []

    def load(self, block):
        self.read.append(block)
        begin = sum(self.lengths[:block])
        return list(range(begin, begin + self.lengths[block]))


def archive(path, samples):
    """Return a tar of (key, {extension: bytes})."""
    with tarfile.open(path, "w") as tar:
        for key, parts in samples:
            for extension, data in parts.items():
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return str(path)


def flat(batches):
    """Return the records of all blocks."""
    return list(itertools.chain.from_iterable(batches))


def all_samples(source):
    """Return all records in block order."""
    return flat(source.load(block) for block in range(len(source.lengths)))


def resumed(state, total_of):
    """Run an epoch with a stream ``state.data`` and a number ``state.total`` that restores its commit once.

    ``total_of``: sums a number over ranks. Returns the records that count, and their total.
    """
    state.sync()
    seen = []
    for batch in ReadAhead(state.data):
        seen.append(batch)
        state.total = state.total + total_of(float(sum(batch)))
        state.data.record()
        if len(seen) == 2:
            state.save()
        if len(seen) == 3:
            break
    state.restore()
    del seen[2:]
    for batch in state.data:
        seen.append(batch)
        state.total = state.total + total_of(float(sum(batch)))
        state.data.record()
    return flat(seen), float(state.total), state.data.processed_num
