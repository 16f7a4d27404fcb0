"""Horovod for MXNet 1.9: asynchronous collectives in MXNet's engine, an optimizer, and a trainer for Gluon.

Example::

    import horovod.mxnet as hvd

    hvd.init()
    params = net.collect_params()
    hvd.broadcast_parameters(params, root_rank=0)
    trainer = hvd.DistributedTrainer(params, "sgd", {"learning_rate": 0.1 * hvd.size()})
"""

from typing import Any

try:
    import mxnet as _mx
except (ImportError, AttributeError) as _error:
    # MXNet raises AttributeError if NumPy has removed names that MXNet uses.
    raise ImportError(
        f"horovod.mxnet needs MXNet 1.9.1, which cannot be imported ({_error}); install it, with the last NumPy that "
        "it works with, in an environment of Python 3.11 or older: pip install mxnet==1.9.1 numpy==1.23.5. The project "
        "Apache MXNet is retired and 1.9.1 is its last release: do not use it for new projects"
    ) from _error
if not hasattr(_mx, "gluon") or not _mx.__version__.startswith("1."):
    raise ImportError(
        f"horovod.mxnet needs MXNet 1.9.1, got {getattr(_mx, '__version__', 'a module without a version')}; "
        "install it with: pip install mxnet==1.9.1 numpy==1.23.5"
    )
from horovod import _absent
from horovod import _core as _native  # noqa: F401  (fail here if the native engine cannot be imported)
from horovod.mxnet import mpi_ops as _mpi_ops
from horovod.mxnet.compression import Compression
from horovod.mxnet.functions import allgather_object, broadcast_object, broadcast_parameters
from horovod.mxnet.mpi_ops import *  # noqa: F403
from horovod.mxnet.optimizer import DistributedOptimizer, DistributedTrainer


def __getattr__(name: str) -> Any:
    raise _absent.no_attribute(__name__, name)


__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "allgather_object",
    "broadcast_object",
    "broadcast_parameters",
    *_mpi_ops.__all__,
]
