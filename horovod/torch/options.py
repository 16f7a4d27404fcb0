"""How an optimizer's gradients are reduced."""

from dataclasses import dataclass, field
from typing import Any

import torch

from horovod.common.ops import Average
from horovod.common.process_sets import ProcessSet
from horovod.torch.compression import Compression


@dataclass
class Options:
    """See ``DistributedOptimizer``."""

    process_set: ProcessSet
    compression: Any = Compression.none
    op: int = Average
    prescale: float = 1.0
    postscale: float = 1.0
    sparse_as_dense: bool = False
    passes: int = 1
    groups: list[list[torch.Tensor]] = field(default_factory=list)
    bucket_most: int = 0
    """Gradients of at most so many bytes share buckets, if all ranks say so; 0: none."""
    sparse_again: bool = False
    """Are gradients that were made dense given back sparse?"""
