"""Blocks that rank 0 runs before the other ranks."""

import contextlib
import threading
from collections.abc import Iterator

from horovod.common.exceptions import HorovodInternalError
from horovod.common.objects import broadcast_object
from horovod.common.state import state


@contextlib.contextmanager
def rank0_first(what: str = "the block of rank0_first()") -> Iterator[None]:
    """Run a block on rank 0 first, then on the other ranks, such as a download into a shared directory.

    The other ranks wait as long as rank 0 is alive, whatever the settings for stalled operations. The block must not
    call collective operations.

    Example::

        with hvd.rank0_first():
            dataset = MNIST("data", download=True)

    Args:
        what (str): Name of the block in the error of the other ranks.

    Raises:
        RuntimeError: On the other ranks, if the block has raised an error on rank 0.
        HorovodInternalError: A rank was lost.
    """
    if state.require_job().rank:
        outcome = None
        while outcome is None:
            outcome = broadcast_object(None, 0, "rank0_first")
        if outcome:
            raise RuntimeError(f"{what} failed on rank 0: {outcome}")
        yield
        return
    over = threading.Event()

    def keep_waiting() -> None:
        with contextlib.suppress(HorovodInternalError):  # which the last broadcast raises, too
            while not over.wait(1.0):
                broadcast_object(None, 0, "rank0_first")

    thread = threading.Thread(target=keep_waiting, name="horovod-rank0-first", daemon=True)
    thread.start()
    outcome = ""
    try:
        yield
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"
        raise
    finally:
        over.set()
        thread.join()
        broadcast_object(outcome, 0, "rank0_first")
