"""What programs written for the Horovod of old look at or call on a distributed optimizer."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from horovod.torch.compression import Compression
from horovod.torch.ops import handles
from horovod.torch.ops.allreduce import allreduce_async_
from horovod.torch.options import Options


def _compression(reducer: Any) -> Any:
    return Compression.none if reducer is None else reducer.options.compression


class Begun(dict[torch.Tensor, tuple[int, Any]]):
    """Reductions that the program has begun itself: by parameter the handle, and what undoes compression."""

    @contextlib.contextmanager
    def apart(self, reducer: Any) -> Iterator[None]:
        """In this context these gradients are None, so that nobody reduces them once more; after it they are
        reduced."""
        grads = {p: p.grad for p in self}
        for p in self:
            p.grad = None
        try:
            yield
        finally:
            for p, (handle, context) in self.items():
                p.grad = grads[p]
                result = handles.synchronize(handle)
                if result is not None:  # the program has not waited for it
                    with torch.no_grad():
                        p.grad.copy_(_compression(reducer).decompress(result, context))  # type: ignore[union-attr]
            if hasattr(reducer, "coverage"):
                reducer.coverage.leave_alone(self.keys())
            self.clear()


# Members of the class of distributed optimizers, whose ``self`` is one. They are no base of it: programs look at the
# bases.


def _passes(self: Any) -> int:
    """Backward passes over which gradients sum up before they are reduced."""
    passes: int = self._hvd.passes
    return passes


def _requires_update(self: Any) -> set[torch.Tensor]:
    """The parameters that are trained."""
    return {p for p in self._parameter_names if p.requires_grad}


def _handles(self: Any) -> Begun:
    """For what ``_allreduce_grad_async`` gives, by parameter: ``synchronize`` and ``step`` wait for it. What backward
    passes make is not in here, since it is reduced when they end."""
    begun: Begun = self._hvd.begun
    return begun


def allreduce_grad_async(self: Any, p: torch.Tensor) -> tuple[int, Any]:
    """Begins to reduce ``p.grad``, which is dense, as the optimizer would, on all ranks alike. A handle, and what
    ``decompress`` of the optimizer's compression needs to know."""
    reducer = self._hvd.reducer
    assert p.grad is not None
    tensor, context = _compression(reducer).compress(p.grad.detach())
    name = f"{self._parameter_names[p]}.asked"
    if reducer is None:
        return allreduce_async_(tensor, name=name), context
    options: Options = reducer.options
    scale = (options.prescale, options.postscale)
    return allreduce_async_(tensor, None, name, options.op, *scale, options.process_set), context


backward_passes_per_step = property(_passes)
requires_update = property(_requires_update)
started = property(_handles)
