"""Operations in the traces of torch.profiler.

``hvd.submit NAME`` marks the submission of an operation to the engine; ``hvd.wait NAME`` covers the time that the
program waits for it. A blocking call records only the latter. Events are recorded while a profiler runs in the calling
thread. Without a profiler the only cost is to check for one.
"""

from typing import Any

import torch
from torch.autograd import profiler


class _Asking:
    """Stand-in for PyTorch's profiler module in versions where it lacks ``_is_profiler_enabled``."""

    _is_profiler_enabled = property(lambda _: torch.autograd._profiler_enabled())


state: Any = profiler if hasattr(profiler, "_is_profiler_enabled") else _Asking()
"""Object whose ``_is_profiler_enabled`` is True while a profiler runs in this process.

An attribute rather than a function, because every operation reads it twice.
"""


def mark(work: Any) -> None:
    """Record that ``work`` was just submitted."""
    with torch.profiler.record_function(f"hvd.submit {_name(work)}"):
        pass


def waiting(work: Any) -> Any:
    """Return a context manager that records a wait for ``work``."""
    return torch.profiler.record_function(f"hvd.wait {_name(work)}")


def _name(work: Any) -> str:
    return work.name or "noname"  # the engine numbers unnamed operations, and that number differs in each step
