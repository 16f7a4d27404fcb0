"""Horovod below PyTorch Lightning 2::

    from horovod.torch.lightning import HorovodStrategy

    trainer = Trainer(strategy=HorovodStrategy())

``horovodrun -np 4 python train.py`` then starts one training on four ranks. Without the strategy it starts four.
"""

import functools
import sys
from typing import Any

import torch

import horovod.torch as hvd
from horovod.torch.lightning.package import NAMES, package_of
from horovod.torch.lightning.strategy import make_class

__all__ = ["HorovodStrategy"]


def HorovodStrategy(
    compression: Any = hvd.Compression.none,
    op: int = hvd.Average,
    gradient_predivide_factor: float = 1.0,
    sparse_as_dense: bool = False,
    device: torch.device | None = None,
    package: Any = None,
) -> Any:
    """Lightning's strategy for the ranks of a job; calls ``hvd.init()`` unless that has been done.

    Each rank is a process with one device. Before anything trains, parameters and buffers take the values of rank 0;
    gradients are reduced by ``hvd.DistributedOptimizer``, whose first four arguments are those of here, with
    ``accumulate_grad_batches`` once for each step. Data loaders get a ``DistributedSampler``, logged values with
    ``sync_dist=True`` and metrics of torchmetrics are those of all ranks. Rank 0 alone reads and writes checkpoints.

    ``device``: of this rank; otherwise that of the Trainer's ``devices`` which belongs to the local rank.
    ``package``: the module ``lightning.pytorch`` or ``pytorch_lightning``; otherwise that which the program has
    imported. (Both have the same classes, and a Trainer takes only strategies of its own.)

    Raises ImportError without Lightning; ValueError naming ``package`` if it is another module. Arguments of the
    optimizer are checked when it is made.
    """
    if package is None:
        imported = [sys.modules[name] for name in NAMES if name in sys.modules]
        package = imported[0] if len(imported) == 1 else package_of("horovod.torch.lightning")
    elif getattr(package, "__name__", None) not in NAMES:
        raise ValueError(f"package is {package!r}; accepted is one of the modules {' and '.join(NAMES)}")
    if not hvd.is_initialized():
        hvd.init()
    options = {
        "compression": compression,
        "op": op,
        "gradient_predivide_factor": gradient_predivide_factor,
        "sparse_as_dense": sparse_as_dense,
    }
    return _class_of(package)(device, options)


_class_of = functools.cache(make_class)
