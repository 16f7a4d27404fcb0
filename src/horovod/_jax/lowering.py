"""Hook that orders a program's collectives as soon as JAX has lowered all of it.

JAX has no public hook for a complete program. In all supported versions, every way to compile one calls
`lower_jaxpr_to_module`. If a version of JAX does not, calls keep a target that XLA does not know (`foreign.UNORDERED`).
The program is then rejected rather than run without an order.
"""

import functools
import threading
from typing import Any

from jax._src import traceback_util
from jax._src.interpreters import mlir

from horovod._jax import foreign
from horovod._jax.ordering import order


class _Lowered(threading.local):
    calls = 0
    """Number of calls that this thread has lowered."""


_lowered = _Lowered()


def lower(arrays: foreign.Arrays) -> list[Any]:
    """Return the results of a new call in a program that JAX is lowering."""
    _lowered.calls += 1
    return list(foreign.create(arrays, [], foreign.UNORDERED).results)[:-1]


def install() -> None:
    """Make JAX's lowering of programs end with `order`. Effective once per process."""
    plain = mlir.lower_jaxpr_to_module

    @functools.wraps(plain)
    def lower_jaxpr_to_module(*args: Any, **kwargs: Any) -> Any:
        before = _lowered.calls
        result = plain(*args, **kwargs)
        if _lowered.calls != before:
            order(result.module)
        return result

    mlir.lower_jaxpr_to_module = lower_jaxpr_to_module
    traceback_util.register_exclusion(__file__)  # errors in users' programs pass through here
