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
    instead = "run it without --auto, or remove that line"
    wrap(torch.nn.DataParallel, "__init__", lambda *_, **__: refuse("it uses several devices in one process", instead))
    wrap(torch.distributed, "init_process_group", lambda *_, **__: refuse("it is a distributed program", instead))


def _save(plain: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    if isinstance(f, str) or hasattr(f, "__fspath__") or hasattr(f, "name"):
        on_rank_0(plain, obj, f, *args, **kwargs)
    else:  # in memory
        plain(obj, f, *args, **kwargs)
