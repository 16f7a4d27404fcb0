"""Synchronization of torchmetrics metrics through Horovod; by default they support only torch.distributed."""

from typing import Any

import torch

import horovod.torch as hvd


def gather(tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
    """Return the tensors of all ranks, in rank order, gathered in one allgather. Shapes may differ.

    ``group`` is ignored: all ranks take part.
    """
    shapes = hvd.allgather_object(tuple(tensor.shape), name="lightning.metric.shape")
    sizes = [torch.Size(shape).numel() for shape in shapes]
    joined = hvd.allgather(tensor.detach().contiguous().reshape(-1), name="lightning.metric")
    return [part.reshape(shape) for part, shape in zip(joined.split(sizes), shapes, strict=True)]


class Gathering:
    """Metrics that use Horovod until ``end``. A metric with its own ``dist_sync_fn`` keeps it."""

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
