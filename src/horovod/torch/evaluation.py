"""Exact evaluation in PyTorch: a sampler without padding, gathered predictions, and torchmetrics support."""

import copy
from collections.abc import Iterator, Sized
from typing import Any

import torch
import torch.utils.data

from horovod.common.objects import allgather_object
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.evaluation import gather_rows
from horovod.torch.mpi_ops import rank, size


class EvalSampler(torch.utils.data.Sampler[int]):
    """Sampler that gives each sample to exactly one rank, without padding.

    Rank r visits the samples r, r + size(), r + 2 * size() and so on. The sample counts of any two ranks differ by at
    most one, and a count can be 0. Call collectives only after the loop over the loader.

    Args:
        dataset (Sized): Any object with a length.
    """

    def __init__(self, dataset: Sized) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[int]:
        return iter(self._own())

    def __len__(self) -> int:
        return len(self._own())

    def _own(self) -> range:
        return range(rank(), len(self.dataset), size())


def gather_for_metrics(values: Any, ids: Any, process_set: ProcessSet = global_process_set) -> Any:
    """Gather the predictions of all ranks, ordered by sample id and without duplicates.

    Call this once after the evaluation for metrics that are not sums over samples, such as AUC and mAP.

    Args:
        values (Tensor): Tensor with one row per sample, or a dict, list or tuple of such tensors.
        ids (Tensor or Sequence): Id of each sample, such as its index in the dataset.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Tensor: On all ranks, CPU tensors in the structure of ``values``, with one row for each id.

    Raises:
        ValueError: If the numbers of rows and ids differ on a rank.
        HorovodInternalError: If a rank was lost.
    """

    def portable(part: Any) -> torch.Tensor:
        return torch.as_tensor(part).detach().cpu()

    def join(parts: list[torch.Tensor], order: list[int]) -> torch.Tensor:
        return torch.cat(parts)[torch.tensor(order, dtype=torch.int64)]

    return gather_rows(values, ids, process_set, portable, join)


def compute_metric(metric: Any, process_set: ProcessSet = global_process_set) -> Any:
    """Compute a torchmetrics metric over the samples of all ranks.

    All ranks of the process set must call this. Ranks that have not updated the metric contribute no samples. The
    metric itself is not changed.

    Args:
        metric (torchmetrics.Metric): Metric that each rank has updated with its own samples. For a MetricCollection,
            call this function with each of its metrics.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        Result of the metric's ``compute`` for all samples.

    Raises:
        ValueError: If ``metric`` is not a single metric of torchmetrics.
        HorovodInternalError: If a rank was lost.
    """
    reductions = getattr(metric, "_reductions", None)
    if reductions is None or any(hasattr(one, "_reductions") for one in metric.modules() if one is not metric):
        raise ValueError(
            f"metric must be a metric of torchmetrics that contains no other metrics, got {type(metric).__name__}; "
            "call compute_metric() with each metric instead"
        )
    mine = {name: _on_cpu(getattr(metric, name)) for name in reductions}
    from_all = allgather_object((metric._update_count, mine), "compute_metric", process_set)
    states = [state for count, state in from_all if count]
    whole = copy.deepcopy(metric)
    # Disable torchmetrics' own synchronization, which would also combine the ranks of torch.distributed.
    whole.sync_on_compute = whole._to_sync = False
    whole._computed = None
    whole._update_count = sum(count for count, _ in from_all)
    for name, reduce in reductions.items() if states else ():
        parts = [state[name] for state in states]
        if isinstance(parts[0], list):
            merged: Any = [_on_device(one, metric) for part in parts for one in part]
        elif getattr(reduce, "__name__", "") == "dim_zero_cat":
            merged = _on_device(torch.cat(parts), metric)
        else:
            stacked = _on_device(torch.stack(parts), metric)
            merged = stacked if reduce is None else reduce(stacked)
        setattr(whole, name, merged)
    return whole.compute()


def _on_cpu(value: Any) -> Any:
    return [_on_cpu(one) for one in value] if isinstance(value, list) else value.detach().cpu()


def _on_device(tensor: torch.Tensor, metric: Any) -> torch.Tensor:
    return tensor.to(getattr(metric, "device", "cpu"))
