"""Data for training: loaders that read ahead, and records of files that are shared out among ranks as a stream.

Pure: which records are left and who visits them (``parts``), in which order (``order``). What acts: files (``paths``,
``ranges``, ``lines``, ``tars``, ``whole``, ``parquet``), a thread that reads ahead (``ahead``). No framework: a rank's
number comes from the job of this process, or as a function."""

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
