"""Training data: prefetching loaders, and streams of records from files, split among ranks.

``order`` computes the order of the records, which of them remain in the epoch, and which rank visits them. ``source``,
``files``, ``tars`` and ``parquet`` read files, and ``loader`` reads ahead in a thread. The package does not depend on a
framework. It gets the rank from this process's job, or from a function that the caller passes.
"""

from horovod.data.files import LineFiles, TarFiles, WholeFiles
from horovod.data.loader import AsyncDataLoaderMixin, BaseDataLoader, ReadAhead
from horovod.data.parquet import ParquetFiles
from horovod.data.source import Source
from horovod.data.streaming import StreamingDataset

__all__ = [
    "AsyncDataLoaderMixin",
    "BaseDataLoader",
    "LineFiles",
    "ParquetFiles",
    "ReadAhead",
    "Source",
    "StreamingDataset",
    "TarFiles",
    "WholeFiles",
]
