"""Handling of the torch.distributed environment variables in a Horovod job."""

import functools
import os
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch.distributed as dist

from horovod.common.contract.settings import BY_NAME
from horovod.common.contract.worker_env import TORCH_PLACE


def hiding(init: Callable[..., None]) -> Callable[..., None]:
    """Decorate ``hvd.init`` to remove the torch.distributed environment variables set by the launcher.

    Accelerate, Lightning and the Hugging Face Trainer initialize torch.distributed themselves if the variables are set.
    If the variables stayed set in a script that calls ``hvd.init()``, gradients would be reduced twice.
    """

    @functools.wraps(init)
    def hidden(*args: Any, **kwargs: Any) -> None:
        init(*args, **kwargs)
        if not (dist.is_available() and dist.is_initialized()) and from_launcher(os.environ):
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
