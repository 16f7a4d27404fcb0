"""Gathering of updated parameters from the ranks that own them."""

from collections.abc import Sequence
from typing import Protocol

import torch

from horovod.common.process_sets import ProcessSet
from horovod.torch.ops import handles
from horovod.torch.ops.allgather import allgather_async


class Flat(Protocol):
    """Flat memory of several parameters, of which each rank owns one shard (``shards.Bucket``)."""

    name: str
    flat: torch.Tensor
    shard: torch.Tensor


class Gathers:
    """Gathers of the parameters of one optimizer, bucket by bucket."""

    def __init__(self, buckets: Sequence[Flat], process_set: ProcessSet) -> None:
        self._buckets, self._process_set = buckets, process_set

    @torch.no_grad()
    def run(self) -> None:
        """Gather the updated parameters on every rank, with no more than two buckets in flight."""
        pending = self._submit(self._buckets[0])
        for i, bucket in enumerate(self._buckets):
            following = self._submit(self._buckets[i + 1]) if i + 1 < len(self._buckets) else 0
            bucket.flat.copy_(handles.synchronize(pending))
            pending = following

    def _submit(self, bucket: Flat) -> int:
        return allgather_async(bucket.shard, bucket.name, self._process_set)
