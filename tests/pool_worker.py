"""A worker process of tests/pool.py: it reads commands from a socket and answers each with a result or a failure."""

import ctypes
import faulthandler
import gc
import importlib
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

PR_SET_PDEATHSIG = 1


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    # A worker must not outlive the test session, whatever it waits for.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        return
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test session handles Ctrl-C
    joined: list[Any] = []
    while True:
        try:
            message = cloudpickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            break
        connection.send_bytes(reply(message, joined))
    leave(joined)


def reply(message: tuple[Any, ...], joined: list[Any]) -> bytes:
    from tests.pool import Failure

    try:
        return cloudpickle.dumps(execute(message, joined))
    except BaseException as error:
        trace = traceback.format_exc()
        try:
            data = cloudpickle.dumps(Failure(error, trace))
            cloudpickle.loads(data)  # some exceptions pickle but do not unpickle
            return data
        except Exception:
            return cloudpickle.dumps(Failure(RuntimeError(f"{type(error).__name__}: {error}"), trace))


def execute(message: tuple[Any, ...], joined: list[Any]) -> Any:
    command, *arguments = message
    if command == "leave":
        leave(joined)
        for name in arguments[0] if arguments else ():
            importlib.import_module(name)
        return None
    if command == "join":
        return join(joined, *arguments)
    forget_loaders()
    function, args, kwargs = cloudpickle.loads(arguments[0])
    return function(*args, **kwargs)


def leave(joined: list[Any]) -> None:
    from horovod.common.frontends import state

    for basics in joined:
        basics.shutdown()
    joined.clear()
    forget_names()
    for frontend in list(state.frontends):  # frontends that the test's function initialized itself
        from horovod.common.basics import HorovodBasics

        HorovodBasics(frontend).shutdown()
    if "horovod.torch" in sys.modules:
        sys.modules["horovod.torch"].shutdown()  # also drops handles, which keep the job's engine alive
    if "HOROVOD_CUDA_LIBRARY" in os.environ:
        gc.collect()  # otherwise the next job's engine would find the device open and create more streams there


def forget_names() -> None:
    """Reset Keras' counters for automatic names.

    Gradients are named after these numbers, so a replaced worker's names would not match those of older workers.
    """
    for name in ("keras", "tf_keras"):
        if name in sys.modules:
            sys.modules[name].backend.clear_session()


def forget_loaders() -> None:
    """Forget data loaders of earlier tests, whose wait times are recorded."""
    from horovod.common.training_loop.steps import marks

    marks.data_seen = False


def join(joined: list[Any], environ: dict[str, str], initialize: bool, frontends: tuple[str, ...]) -> None:
    from horovod.common.basics import HorovodBasics

    for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
        del os.environ[name]
    os.environ.update(environ)
    if initialize:
        for frontend in frontends:
            basics = HorovodBasics(frontend)
            basics.init()
            joined.append(basics)


if __name__ == "__main__":
    main()
