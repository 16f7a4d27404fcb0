"""Per-process state of ``--auto``: rank, script, messages, patched functions, and rank-0-only output."""

import atexit
import collections
import importlib.util
import inspect
import logging
import multiprocessing.process
import os
import random
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

import horovod.numpy as hvd

_HERE = os.path.dirname(os.path.abspath(__file__))
_LIBRARIES = (
    os.path.dirname(_HERE),
    *(sysconfig.get_paths()[n] for n in ("stdlib", "platstdlib", "purelib", "platlib")),
)


class AutoError(SystemExit):
    """Raised if ``--auto`` cannot train a script correctly. ``except Exception`` does not catch it."""


class Session:
    """State of ``horovod.auto`` in this process."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self.lr_scale = "none"
        self.script = ""
        self.seed = 0
        self.started = time.time()
        self.touched: collections.Counter[str] = collections.Counter()
        # Number of nested Keras training calls. While it is above 0, Keras' own calls to PyTorch are not changed.
        self.suspended = 0

    @property
    def lr_factor(self) -> float:
        """Factor by which the script's learning rates are multiplied."""
        return {"none": 1.0, "linear": float(self.size), "sqrt": self.size**0.5}[self.lr_scale]

    def log(self, text: str) -> None:
        """Print a line of text to stderr on rank 0."""
        if self.rank == 0:
            print(f"horovod.auto: {text}", file=sys.stderr, flush=True)

    def change(self, kind: str, text: str) -> None:
        """Record that an object of this kind was patched, and print a line about it."""
        self.touched[kind] += 1
        self.log(f"{script_line()}: {text}")


session = Session()


@atexit.register
def _summarize() -> None:
    counts = ", ".join(f"{n} {kind}" for kind, n in session.touched.items())
    if session.script:
        session.log(f"ends; touched: {counts or 'nothing, each rank has run the whole script'}")


def calling_frame(*through: str) -> Any:
    """Return the frame that called a patched function, skipping frames of the given modules."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_HERE) or frame.f_globals.get("__name__", "").split(".")[0] in through:
        frame = frame.f_back
    return frame


def is_script(frame: Any) -> bool:
    """Return True if a frame is in the user's code, and not in Python, an installed package or Horovod."""
    name = frame.f_code.co_filename
    return not name.startswith((*_LIBRARIES, "<")) and "-packages" + os.sep not in name


def script_code() -> Any:
    """Return the code object of the innermost function of the script that is running and not a generator, or None."""
    frame: Any = sys._getframe(1)
    while frame is not None and (not is_script(frame) or frame.f_code.co_flags & inspect.CO_GENERATOR):
        frame = frame.f_back
    return getattr(frame, "f_code", None)


def script_line() -> str:
    """Return "file:line" of the innermost frame that belongs to the user's program."""
    frame: Any = sys._getframe(1)
    while frame is not None and not is_script(frame):
        frame = frame.f_back
    if frame is None:
        return session.script
    name, short = frame.f_code.co_filename, os.path.relpath(frame.f_code.co_filename)
    return f"{name if short.startswith(os.pardir) else short}:{frame.f_lineno}"


def refuse(why: str, instead: str, line: str = "") -> NoReturn:
    """Raise AutoError, with the script's line in the message."""
    line = line or script_line()
    raise AutoError(f"horovod.auto: {line}: --auto cannot train this script correctly: {why}; {instead}")


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Patch a function with ``around``, which gets the original function as its first argument."""
    plain = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        return around(plain, *args, **kwargs)

    call.__name__, call.__doc__ = name, plain.__doc__
    setattr(owner, name, call)


# The functions below limit output to rank 0, synchronize random numbers, and reject child processes of a script.


class Nothing:
    """No-op stand-in for MLflow or TensorBoard on ranks other than 0."""

    __path__: tuple[str, ...] = ()  # allows the script to import submodules, such as mlflow.pytorch

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> "Nothing":
        return self

    def __getattr__(self, name: str) -> "Nothing":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    __enter__ = __call__

    def __exit__(self, *_: object) -> None: ...


def limit_output() -> None:
    """Limit output to rank 0, give all ranks the same random seed, and reject subprocesses."""
    session.seed = int(hvd.broadcast_object(random.getrandbits(31), 0, name="auto.seed"))
    random.seed(session.seed)
    np.random.seed(session.seed)
    draw = np.random.randint  # randint uses the global random state, which is equal on all ranks
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
    """Create a directory for the script, even if another rank creates it concurrently."""
    try:
        plain(path, *args, **kwargs)
    except FileExistsError:
        made = os.path.isdir(path) and os.stat(path).st_ctime >= session.started
        if not made or not is_script(calling_frame("os", "pathlib")):
            raise


def on_rank_0(plain: Any, *args: Any, **kwargs: Any) -> None:
    """Call ``plain`` on rank 0 only. Other ranks wait until the call returns."""
    # Name the operation after the script's line, which the warning about a missing rank then shows.
    name = f"auto.save {script_line()}"
    # Before rank 0 writes, wait until all ranks have opened their files, because opening truncates them.
    hvd.allreduce(np.zeros(1), name=name)
    try:
        if session.rank == 0:
            plain(*args, **kwargs)
            for file in (*args, *kwargs.values()):
                if hasattr(file, "flush"):
                    file.flush()
    finally:
        hvd.allreduce(np.zeros(1), name=name)
    session.touched["saved files"] += 1
