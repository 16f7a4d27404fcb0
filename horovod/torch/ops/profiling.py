"""Operations in the traces of torch.profiler.

``hvd.submit NAME`` marks where an operation was handed to the engine, ``hvd.wait NAME`` is the time that the program
waited for it. A blocking call has the second one only. Recorded while a profiler runs in the calling thread; otherwise
it costs the question whether one does.
"""

from typing import Any

import torch

running = torch.autograd._profiler_enabled
"""Is a profiler at work in this thread?"""


def mark(work: Any) -> None:
    """``work`` has just been submitted."""
    with torch.profiler.record_function(f"hvd.submit {_name(work)}"):
        pass


def begin_wait(work: Any) -> Any:
    """The program begins to wait for ``work``; to be ended by ``__exit__``."""
    span = torch.profiler.record_function(f"hvd.wait {_name(work)}")
    span.__enter__()
    return span


def _name(work: Any) -> str:
    return work.name or "noname"  # the engine numbers such operations, and the number would be another in each step
