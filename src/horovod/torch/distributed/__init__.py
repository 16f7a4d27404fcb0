"""``hvd`` backend for torch.distributed, which runs collectives on Horovod's engine.

Importing ``horovod.torch`` registers the backend::

    import horovod.torch
    import torch.distributed as dist

    dist.init_process_group("hvd")

The environment variables of torch.distributed (``RANK``, ``MASTER_ADDR`` and others) are set by ``horovodrun``,
torchrun or another launcher. In a script that calls ``hvd.init()``, and under launchers that do not set these
variables, use ``init_method="hvd://"``.
"""

from typing import Any

import torch.distributed as _dist

__all__ = ["register"]


def _create(*arguments: Any) -> Any:
    # Import this module lazily, because most programs do not create a process group.
    from horovod.torch.distributed.groups import create

    return create(*arguments)


def _rendezvous(*arguments: Any, **options: Any) -> Any:
    from horovod.torch.distributed.groups import rendezvous

    return rendezvous(*arguments, **options)


def register() -> None:
    """Register the ``hvd`` backend and the ``hvd://`` init method. Can be called repeatedly."""
    if not _dist.is_available() or hasattr(_dist.Backend, "HVD"):
        return
    _dist.Backend.register_backend("hvd", _create, extended_api=True, devices=["cpu", "cuda"])
    _dist.register_rendezvous_handler("hvd", _rendezvous)


register()
