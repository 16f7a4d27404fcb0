"""Metrics of torchmetrics, which know only torch.distributed by themselves, are made to gather by Horovod."""

from typing import Any

import torch

import horovod.torch as hvd


def gather(tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
    """The tensors of all ranks by rank, in one allgather; shapes may differ. ``group``: all."""
    shapes = hvd.allgather_object(tuple(tensor.shape), name="lightning.metric.shape")
    sizes = [torch.Size(shape).numel() for shape in shapes]
    joined = hvd.allgather(tensor.detach().contiguous().reshape(-1), name="lightning.metric")
    return [part.reshape(shape) for part, shape in zip(joined.split(sizes), shapes, strict=True)]


class Gathering:
    """Metrics that gather by Horovod until ``end``. One that has a ``dist_sync_fn`` of its own keeps it."""

    def __init__(self, module: torch.nn.Module) -> None:
        from torchmetrics import Metric

        self._before = [
            (one, one.distributed_available_fn)
            for one in module.modules()
            if isinstance(one, Metric) and one.dist_sync_fn is None
        ]
        for one, _ in self._before:
            one.dist_sync_fn, one.distributed_available_fn = gather, _anybody_else

    def end(self) -> None:
        for one, available in self._before:
            one.dist_sync_fn, one.distributed_available_fn = None, available


def _anybody_else() -> bool:
    return hvd.is_initialized() and hvd.size() > 1
