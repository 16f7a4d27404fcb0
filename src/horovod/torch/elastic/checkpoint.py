"""Checkpoints of PyTorch programs, with tensors in the format of ``torch.save``."""

import os
from collections.abc import Mapping
from typing import IO, Any

import torch

from horovod.common.elastic.state_checkpoint import StateCheckpoint
from horovod.torch.elastic.copying import copied
from horovod.torch.mpi_ops import rank, size


class Checkpoint(StateCheckpoint):  # noqa: D101 - the base class's docstring
    __doc__ = StateCheckpoint.__doc__

    def __init__(
        self, directory: str | os.PathLike[str], keep: int = 3, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        """Open a directory of checkpoints.

        Args:
            directory (str or PathLike): Path, or a URL supported by fsspec such as ``s3://bucket/name``.
            keep (int): Number of checkpoints to keep, the latest ones. Default: 3.
            storage_options (Mapping, optional): Options of the fsspec file system.

        Raises:
            ValueError: ``keep`` is less than 1, or ``directory`` is a file.
            ImportError: The package that the URL needs is missing.
        """
        options = storage_options
        super().__init__(
            directory, keep, rank=rank, size=size, copied=_copied, dump=torch.save, load=_load, storage_options=options
        )


def _copied(value: Any) -> Any:
    return copied(value, None)


def _load(file: IO[bytes]) -> Any:
    # weights_only=False: a state may contain any object, and the directory is the program's own, so it is trusted.
    return torch.load(file, map_location="cpu", weights_only=False)
