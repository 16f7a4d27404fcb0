"""``hvd`` backend for torch.distributed, which runs collectives on Horovod's engine.

Importing ``horovod.torch`` registers the backend::

    import horovod.torch
    import torch.distributed as dist

    dist.init_process_group("hvd")

The environment variables of torch.distributed (``RANK``, ``MASTER_ADDR`` and others) are set by ``horovodrun``,
torchrun or another launcher. In a script that calls ``hvd.init()``, and under launchers that do not set these
variables, use ``init_method="hvd://"``.
"""

import functools
import os
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch.distributed as _dist

from horovod.common.contract.settings import BY_NAME
from horovod.common.contract.worker_env import TORCH_PLACE

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

# Environment variables of torch.distributed that horovodrun has set.


def hiding(init: Callable[..., None]) -> Callable[..., None]:
    """Decorate ``hvd.init`` to remove the torch.distributed environment variables set by the launcher.

    Accelerate, Lightning and the Hugging Face Trainer initialize torch.distributed themselves if the variables are set.
    If the variables stayed set in a script that calls ``hvd.init()``, gradients would be reduced twice.

    Returns:
        The decorated function.
    """

    @functools.wraps(init)
    def hidden(*args: Any, **kwargs: Any) -> None:
        init(*args, **kwargs)
        if not (_dist.is_available() and _dist.is_initialized()) and from_launcher(os.environ):
            hide(os.environ)

    return hidden


def from_launcher(environ: Mapping[str, str]) -> bool:
    """Return True if horovodrun has set the torch.distributed environment variables."""
    name = "HOROVOD_TORCH_DISTRIBUTED_ENV"
    ours = environ.get("HOROVOD_RANK"), environ.get("HOROVOD_SIZE")
    theirs = environ.get("RANK"), environ.get("WORLD_SIZE")
    on = bool(BY_NAME[name].parse(environ.get(name, "")))
    return on and None not in ours and ours == theirs and "TORCHELASTIC_RUN_ID" not in environ


def hide(environ: MutableMapping[str, str]) -> None:
    """Remove the environment variables from which torch.distributed reads this process's rank."""
    for name in TORCH_PLACE:
        environ.pop(name, None)
