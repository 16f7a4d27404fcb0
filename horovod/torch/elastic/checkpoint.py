"""Checkpoints of PyTorch programs: tensors as ``torch.save`` writes them."""

import os
from collections.abc import Mapping
from typing import IO, Any

import torch

from horovod.common.elastic.state_checkpoint import StateCheckpoint
from horovod.torch.elastic.copying import copied
from horovod.torch.mpi_ops import rank, size


class Checkpoint(StateCheckpoint):
    __doc__ = StateCheckpoint.__doc__

    def __init__(
        self, directory: str | os.PathLike[str], keep: int = 3, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        """``directory``: a path, or a URL that fsspec knows, as ``s3://bucket/name``, with ``storage_options`` as that
        is told. ``keep``: so many are kept, the latest. Raises ValueError for less than 1, and for a directory that is
        a file; ImportError naming the package that a URL needs."""
        options = storage_options
        super().__init__(
            directory, keep, rank=rank, size=size, copied=_copied, dump=torch.save, load=_load, storage_options=options
        )


def _copied(value: Any) -> Any:
    return copied(value, None)


def _load(file: IO[bytes]) -> Any:
    # Attributes of a state are any objects. Where they come from is known: a program's own directory.
    return torch.load(file, map_location="cpu", weights_only=False)
