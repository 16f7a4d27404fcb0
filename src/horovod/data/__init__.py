"""Data for training: loaders that read ahead, and streams of records from files that are divided among ranks.

``order`` (pure) decides in which order records are visited, which are left, and which rank visits them. Others read
files (``source``, ``files``, ``tars``, ``parquet``) or read ahead in a thread (``loader``).
Independent of frameworks: a rank's number comes from the job of this process, or is passed as a function.
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
