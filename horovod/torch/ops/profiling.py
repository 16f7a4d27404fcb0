"""Operations in the traces of torch.profiler.

``hvd.submit NAME`` marks where an operation was handed to the engine, ``hvd.wait NAME`` is the time that the program
waited for it. A blocking call has the second one only. Recorded while a profiler runs in the calling thread; otherwise
it costs the question whether there is one.
"""

from typing import Any

import torch
from torch.autograd import profiler


class _Asking:
    """In the place of the profiler's module where that has no such attribute."""

    _is_profiler_enabled = property(lambda _: torch.autograd._profiler_enabled())


state: Any = profiler if hasattr(profiler, "_is_profiler_enabled") else _Asking()
"""``state._is_profiler_enabled``: does a profiler run in this process? An attribute, because every operation asks
twice."""


def mark(work: Any) -> None:
    """``work`` has just been submitted."""
    with torch.profiler.record_function(f"hvd.submit {_name(work)}"):
        pass


def waiting(work: Any) -> Any:
    """A context in which the program waits for ``work``."""
    return torch.profiler.record_function(f"hvd.wait {_name(work)}")


def _name(work: Any) -> str:
    return work.name or "noname"  # the engine numbers such operations, and the number would be another in each step
