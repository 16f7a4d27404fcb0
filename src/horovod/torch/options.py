"""Settings for the reduction of an optimizer's gradients."""

from dataclasses import dataclass, field
from typing import Any

import torch

from horovod.common.ops import Average
from horovod.common.process_sets import ProcessSet
from horovod.torch.compression import Compression


@dataclass
class Options:
    """Arguments of ``DistributedOptimizer``, checked and normalized."""

    process_set: ProcessSet
    compression: Any = Compression.none
    op: int = Average
    prescale: float = 1.0
    postscale: float = 1.0
    sparse_as_dense: bool = False
    passes: int = 1
    groups: list[list[torch.Tensor]] = field(default_factory=list)
    bucket_most: int = 0
    """Maximum bytes of a gradient that shares a bucket, if all ranks agree; 0 disables buckets."""
    sparse_again: bool = False
    """True to convert gradients that were made dense back to sparse ones."""
