"""Data for training: loaders that read ahead, and streams of records from files that are divided among ranks.

``order`` computes in which order records are visited, which of them are left, and which rank visits them. ``source``,
``files``, ``tars`` and ``parquet`` read files, and ``loader`` reads ahead in a thread. The package does not depend on a
framework: it gets a rank's number from the job of this process, or from a function that the caller passes.
"""

from horovod.data.files import LineFiles, WholeFiles
from horovod.data.loader import AsyncDataLoaderMixin, BaseDataLoader, ReadAhead
from horovod.data.parquet import ParquetFiles
from horovod.data.source import Source
from horovod.data.streaming import StreamingDataset
from horovod.data.tars import TarFiles

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
