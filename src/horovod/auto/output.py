"""Output of rank 0 only, equal random numbers, and refusal of processes that a script starts."""

import importlib.util
import logging
import multiprocessing.process
import os
import random
import subprocess
import sys
from typing import Any

import numpy as np

import horovod.numpy as hvd
from horovod.auto.session import calling_frame, is_script, refuse, script_line, session, wrap


class Nothing:
    """Object that accepts every use and does nothing: MLflow or TensorBoard on ranks other than 0."""

    __path__: tuple[str, ...] = ()  # of a package

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> "Nothing":
        return self

    def __getattr__(self, name: str) -> "Nothing":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    __enter__ = __call__

    def __exit__(self, *_: object) -> None: ...


def install() -> None:
    """Limit output to rank 0, give all ranks the same random seed, and refuse subprocesses."""
    session.seed = int(hvd.broadcast_object(random.getrandbits(31), 0, name="auto.seed"))
    random.seed(session.seed)
    np.random.seed(session.seed)
    draw = np.random.randint  # from the global state, which is equal on all ranks
    wrap(np.random, "default_rng", lambda plain, seed=None: plain(draw(2**31) if seed is None else seed))
    if session.rank != 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (open until the process ends)
        os.environ["TQDM_DISABLE"] = "1"
        os.environ["WANDB_MODE"] = "disabled"
        logging.disable(logging.WARNING)
        for name in ("mlflow", "mlflow.pytorch", "mlflow.keras", "tensorboardX", "torch.utils.tensorboard"):
            if importlib.util.find_spec(name.partition(".")[0]) or name.partition(".")[0] in sys.modules:
                sys.modules[name] = Nothing()  # type: ignore[assignment]
    for owner, name in ((subprocess.Popen, "__init__"), (os, "system"), (multiprocessing.process.BaseProcess, "start")):
        wrap(owner, name, _start)
    wrap(os, "mkdir", _mkdir)


def _start(plain: Any, *args: Any, **kwargs: Any) -> Any:
    if is_script(calling_frame("subprocess", "multiprocessing")):
        refuse("it starts a process on every rank", "start the process outside the training script")
    return plain(*args, **kwargs)


def _mkdir(plain: Any, path: Any, *args: Any, **kwargs: Any) -> None:
    """Create a directory of the script, unless another rank has created it in the meantime."""
    try:
        plain(path, *args, **kwargs)
    except FileExistsError:
        made = os.path.isdir(path) and os.stat(path).st_ctime >= session.started
        if not made or not is_script(calling_frame("os", "pathlib")):
            raise


def on_rank_0(plain: Any, *args: Any, **kwargs: Any) -> None:
    """Call ``plain`` on rank 0. The other ranks wait until it has returned."""
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
