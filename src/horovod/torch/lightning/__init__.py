"""Horovod for PyTorch Lightning 2.

Example::

    from horovod.torch.lightning import HorovodStrategy

    trainer = Trainer(strategy=HorovodStrategy())

With the strategy, ``horovodrun -np 4 python train.py`` starts a single training run on four ranks. Without it, the same
command starts four independent training runs.
"""

import functools
import sys
from typing import Any

import torch

import horovod.torch as hvd
from horovod.torch.lightning.strategy import NAMES, make_class, package_of

__all__ = ["HorovodStrategy"]


def HorovodStrategy(
    compression: Any = hvd.Compression.none,
    op: int = hvd.Average,
    gradient_predivide_factor: float = 1.0,
    sparse_as_dense: bool = False,
    device: torch.device | None = None,
    package: Any = None,
) -> Any:
    """Return a Lightning strategy that trains on the ranks of a Horovod job.

    The function calls ``hvd.init()`` if necessary. Each rank is a process with one device. Before training, parameters
    and buffers are set to rank 0's values. ``hvd.DistributedOptimizer`` reduces the gradients, with
    ``accumulate_grad_batches`` once per step. Data loaders get a ``DistributedSampler``. Values logged with
    ``sync_dist=True``, and torchmetrics metrics, cover all ranks. Only rank 0 reads and writes checkpoints.

    Args:
        compression (Compressor): As for ``hvd.DistributedOptimizer``. Default: none.
        op (int): As for ``hvd.DistributedOptimizer``. Default: ``Average``.
        gradient_predivide_factor (float): As for ``hvd.DistributedOptimizer``. Default: 1.0.
        sparse_as_dense (bool): As for ``hvd.DistributedOptimizer``. Default: False.
        device (torch.device, optional): Device of this rank. Default: chosen by the local rank from the Trainer's
            ``devices``.
        package (module, optional): The module ``lightning.pytorch`` or ``pytorch_lightning``; a Trainer accepts only
            strategies of the package. Default: the package that the program has imported.

    Returns:
        Strategy: Strategy for ``Trainer(strategy=...)``.

    Raises:
        ImportError: If lightning is not installed.
        ValueError: If ``package`` is another module. Arguments for the optimizer are checked later, when it is created.
    """
    if package is None:
        imported = [sys.modules[name] for name in NAMES if name in sys.modules]
        package = imported[0] if len(imported) == 1 else package_of("horovod.torch.lightning")
    elif getattr(package, "__name__", None) not in NAMES:
        raise ValueError(f"package must be one of the modules {' and '.join(NAMES)}, got {package!r}")
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
