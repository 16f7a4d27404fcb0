"""Changes to PyTorch that make scripts data-parallel."""

from typing import Any

import torch

import horovod.torch as hvd
from horovod.auto import batches, gradients
from horovod.auto.output import on_rank_0
from horovod.auto.session import refuse, session, wrap


def install() -> None:
    """Change PyTorch for this process."""
    hvd.init()
    torch.manual_seed(session.seed)
    batches.install()
    gradients.install()
    wrap(torch, "save", _save)
    wrap(torch.nn.DataParallel, "__init__", lambda plain: _refused("it uses several devices in one process"))
    wrap(torch.distributed, "init_process_group", lambda plain: _refused("it is a distributed program already"))


def _save(plain: Any) -> Any:
    limited = on_rank_0(plain)

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        in_memory = not isinstance(f, str) and not hasattr(f, "__fspath__") and not hasattr(f, "name")
        (plain if in_memory else limited)(obj, f, *args, **kwargs)

    return save


def _refused(why: str) -> Any:
    def call(*_: Any, **__: Any) -> None:
        refuse(why, "run it without --auto, or remove that line")

    return call
