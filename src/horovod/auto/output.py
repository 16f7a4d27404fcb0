"""Output of rank 0 only, and refusal of processes that a script starts."""

import importlib.util
import logging
import multiprocessing.process
import os
import random
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

import horovod.numpy as hvd
from horovod.auto.session import called_by_script, refuse, script_line, session, wrap


class Nothing:
    """Object that accepts every use and does nothing: a SummaryWriter or a run of MLflow on other ranks."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> "Nothing":
        return self

    def __getattr__(self, name: str) -> "Nothing":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __enter__(self) -> "Nothing":
        return self

    def __exit__(self, *_: object) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class _NoModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing if name[:1].isupper() else Nothing()


def install() -> None:
    """Limit output to rank 0, give all ranks the same random seed, and refuse subprocesses."""
    seed = int(hvd.broadcast_object(random.getrandbits(31), 0, name="auto.seed"))
    random.seed(seed)
    np.random.seed(seed)
    draw = np.random.randint  # from the global state, which is equal on all ranks
    wrap(np.random, "default_rng", lambda plain: lambda seed=None: plain(draw(2**31) if seed is None else seed))
    session.seed = seed
    if session.rank != 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (open until the process ends)
        os.environ["TQDM_DISABLE"] = "1"
        os.environ["WANDB_MODE"] = "disabled"
        logging.disable(logging.WARNING)
        for name in ("mlflow", "tensorboardX", "torch.utils.tensorboard"):
            if importlib.util.find_spec(name.partition(".")[0]):
                sys.modules[name] = _NoModule(name)
    for owner, name in ((subprocess.Popen, "__init__"), (os, "system"), (multiprocessing.process.BaseProcess, "start")):
        wrap(owner, name, _refused)


def _refused(plain: Any) -> Any:
    def start(*args: Any, **kwargs: Any) -> Any:
        depth = 1
        while sys._getframe(depth).f_globals.get("__name__") in ("subprocess", "multiprocessing.process"):
            depth += 1
        if called_by_script(depth):
            refuse("it starts a process on every rank", "start the process outside the training script")
        return plain(*args, **kwargs)

    return start


def on_rank_0(plain: Any) -> Any:
    """Return ``plain`` limited to rank 0. The other ranks wait until it has returned."""

    def save(*args: Any, **kwargs: Any) -> None:
        name = f"auto.save {script_line()}"  # the warning about a rank that does not save names the line
        hvd.allreduce(np.zeros(1), name=name)  # files that each rank has opened are truncated before rank 0 writes
        try:
            if session.rank == 0:
                plain(*args, **kwargs)
                for file in (*args, *kwargs.values()):
                    if hasattr(file, "flush"):
                        file.flush()
        finally:
            hvd.allreduce(np.zeros(1), name=name)
        session.touched["saved files"] += 1

    return save
