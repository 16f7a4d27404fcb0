"""Data for training: loaders that read ahead, and streams of records from files that are divided among ranks.

Pure parts decide which records are left and which rank visits them (``parts``), and in which order (``order``). Others
read files (``paths``, ``ranges``, ``lines``, ``tars``, ``whole``, ``parquet``) or read ahead in a thread (``ahead``).
Independent of frameworks: a rank's number comes from the job of this process, or is passed as a function.
"""

from horovod.data.ahead import ReadAhead
from horovod.data.lines import LineFiles
from horovod.data.loader import AsyncDataLoaderMixin, BaseDataLoader
from horovod.data.parquet import ParquetFiles
from horovod.data.source import Source
from horovod.data.streaming import StreamingDataset
from horovod.data.tars import TarFiles
from horovod.data.whole import WholeFiles

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
