"""Method ``step()`` of a distributed optimizer: closures, reduction, and a check for missed gradients.

The last part of this module has optimizer methods that programs written for earlier versions of Horovod call.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from horovod.common.contract.log import warn_user
from horovod.common.ops import Average, Sum
from horovod.common.training_loop.steps import marks
from horovod.common.training_loop.weights import current
from horovod.torch import monitoring
from horovod.torch.compression import Compression
from horovod.torch.monitoring import check_after_step
from horovod.torch.ops import handles
from horovod.torch.ops.allreduce import allreduce_, allreduce_async_
from horovod.torch.reducer.adasum import DeltaReducer
from horovod.torch.reducer.coverage import names_of
from horovod.torch.reducer.gradients import GradientReducer
from horovod.torch.reducer.parameter_names import Members
from horovod.torch.reducer.submissions import NoiseSampler, Options


def reducing(closure: Callable[[], Any], reducer: GradientReducer) -> Callable[[], Any]:
    """Wrap a closure to reduce the loss and the gradients over the ranks.

    All ranks must call it. Optimizers with a line search, such as LBFGS, use the loss to decide how often to call the
    closure. If each rank used its own loss, ranks could make a different number of calls, and a rank with more calls
    would wait forever.

    The loss can be a number, a tensor with one element, or None. It is summed if ``op`` is Sum and averaged otherwise,
    so that the gradients match the loss.

    Returns:
        The new closure, which returns the reduced loss.
    """

    def run() -> Any:
        # Reset the last step's state, because only some ranks might run a backward pass in the closure.
        reducer.stepped()
        reducer.coverage.mark_reduced()
        loss = closure()
        reducer.synchronize(only_new=True)
        reducer.reduce_left_out()
        return _reduce(loss, reducer)

    return run


def _reduce(loss: Any, reducer: GradientReducer) -> Any:
    known = isinstance(loss, int | float) or (isinstance(loss, torch.Tensor) and loss.numel() == 1)
    # Always reduce a float64, so that ranks run the same operation even if their closures return different types. Use
    # Tensor.item(), because float() would warn about tensors that require a gradient.
    number = loss.item() if isinstance(loss, torch.Tensor) and known else loss
    value = torch.tensor([number if known else 0.0], dtype=torch.float64, device="cpu")
    op = Sum if reducer.options.op == Sum else Average
    allreduce_(value, name=f"{reducer.name}.loss", op=op, process_set=reducer.options.process_set)
    if not known:
        return loss
    if isinstance(loss, torch.Tensor):
        return torch.full_like(loss.detach(), value.item())
    return value.item()


def _no_step(*args: Any, **kwargs: Any) -> None:
    """Do nothing. Used instead of an optimizer step if the total weight of the gradients is 0."""


def _compression(reducer: Any) -> Any:
    return Compression.none if reducer is None else reducer.options.compression


class ManualReductions(dict[torch.Tensor, tuple[int, Any]]):
    """Reductions started by the program itself.

    The dict maps each parameter to (handle, compression context).
    """

    @contextlib.contextmanager
    def without_gradients(self, reducer: Any) -> Iterator[None]:
        """Return a context manager that sets the gradients being reduced to None, to prevent a second reduction.

        On exit, it restores the gradients, which then hold the reduced values.
        """
        grads = {p: p.grad for p in self}
        for p in self:
            p.grad = None
        try:
            yield
        finally:
            for p, (handle, context) in self.items():
                p.grad = grads[p]
                result = handles.synchronize(handle)
                # The result is None if the program has already synchronized this handle itself.
                if result is not None:
                    with torch.no_grad():
                        p.grad.copy_(_compression(reducer).decompress(result, context))  # type: ignore[union-attr]
            if hasattr(reducer, "coverage"):
                reducer.coverage.mark_reduced(self.keys())
            self.clear()


class Control:
    """State that a distributed optimizer adds to the plain one, including its reducer."""

    __slots__ = (
        *("manual", "in_step", "members", "noise", "passes", "reducer", "should_synchronize", "synchronized", "warned"),
    )

    def __init__(self, reducer: GradientReducer | DeltaReducer | None, passes: int, members: Members) -> None:
        self.reducer = reducer
        self.passes = passes
        self.members = members
        self.manual = ManualReductions()
        self.noise = NoiseSampler()
        self.should_synchronize = True
        # True if the user has called synchronize() since the last step.
        self.synchronized = False
        self.in_step = False
        # True once the program has been warned about gradients that were not reduced.
        self.warned = False

    def step(self, step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Reduce the gradients if necessary, then run the wrapped optimizer's ``step``."""
        if self.in_step:
            # This call is nested in another step() of this optimizer, which has already reduced the gradients.
            return step(*args, **kwargs)
        reducer = self.reducer
        if isinstance(reducer, DeltaReducer):
            return reducer.step(lambda: self._plain(step, args, kwargs))
        closure = args[0] if args else kwargs.get("closure")
        if self.should_synchronize:
            if self.synchronized:
                warn_user(
                    "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(); "
                    "gradients are reduced when backward() returns, so neither call is needed",
                )
            # With a closure, ignore existing gradients that no backward pass has produced, because the closure will
            # replace them.
            self.synchronize(only_new=closure is not None)
            if closure is not None and reducer is not None:
                closure = reducing(closure, reducer)
                args, kwargs = ((closure, *args[1:]), kwargs) if args else (args, {**kwargs, "closure": closure})
        elif isinstance(reducer, GradientReducer):
            self._warn_of_left_out(
                reducer, " in optimizer.skip_synchronize()", "call optimizer.synchronize() before it, unless"
            )
        if reducer is not None and closure is None and reducer.has_zero_weight:
            step = _no_step
        return self._plain(step, args, kwargs)

    def _warn_of_left_out(self, reducer: GradientReducer, where: str, advice: str) -> None:
        if not self.warned and (left_out := reducer.coverage.left_out()):
            self.warned = True
            warn_user(
                f"optimizer.step(){where} uses gradients that were not reduced: {names_of(left_out)}; {advice} ranks "
                "may differ"
            )

    def _plain(self, step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.in_step = True
        reducer = self.reducer
        try:
            result = step(*args, **kwargs)
            if (
                self.should_synchronize
                and isinstance(reducer, GradientReducer)
                and monitoring.is_compared(reducer.progress.steps.now() + 1)
            ):
                self._warn_of_left_out(reducer, "", "set gradients before step(), not in one of its hooks, unless")
            return result
        finally:
            self.in_step = False
            self.synchronized = False
            if self.reducer is not None:
                self.reducer.stepped()

    def synchronize(self, only_new: bool = False) -> None:
        """Reduce all gradients; see ``GradientReducer.synchronize``.

        Unless ``only_new`` is True, gradients that every reduction round has missed are reduced too.
        """
        with self.manual.without_gradients(self.reducer) if self.manual else contextlib.nullcontext():
            if self.reducer is not None:
                self.reducer.synchronize(only_new=only_new)
                if not only_new:
                    self.reducer.reduce_left_out()

    def stepped(self, optimizer: Any, names: dict[torch.Tensor, str]) -> None:
        """Record a completed step of ``optimizer``. ``names`` maps parameters to names."""
        if not self.in_step:
            marks.optimizer(self)
        if self.reducer is not None and not self.in_step:
            if current.batch is not None:
                current.stepped.add(self.reducer.name)
            count, process_set = self.reducer.progress.steps, self.reducer.options.process_set
            steps = count.add()
            monitoring.after_step(names, f"{self.reducer.name} {count.era}", process_set, steps, not self.warned)
            if isinstance(self.reducer, GradientReducer):
                self.noise.after_step(self.reducer.in_flight, self.reducer.name, process_set, steps)
            check_after_step(optimizer, names, process_set, steps)

    @contextlib.contextmanager
    def skipping(self) -> Iterator[None]:
        self.should_synchronize = False
        try:
            yield
        finally:
            self.should_synchronize = True


# Methods of distributed optimizers, where ``self`` is the optimizer. They are plain functions instead of a base class,
# because some programs inspect an optimizer's base classes.


def _passes(self: Any) -> int:
    """Return the number of backward passes to accumulate before a reduction."""
    passes: int = self._hvd.passes
    return passes


def _requires_update(self: Any) -> set[torch.Tensor]:
    """Return the trainable parameters."""
    return {p for p in self._parameter_names if p.requires_grad}


def _handles(self: Any) -> ManualReductions:
    """Return the operations started by ``_allreduce_grad_async``, as a dict keyed by parameter.

    ``synchronize`` and ``step`` wait for them. Gradients of backward passes are not included: they are reduced at the
    end of the pass.
    """
    manual: ManualReductions = self._hvd.manual
    return manual


def allreduce_grad_async(self: Any, p: torch.Tensor) -> tuple[int, Any]:
    """Start reducing the dense gradient of a parameter. All ranks must make the same calls.

    Returns:
        tuple[int, Any]: Handle, and the context for the compressor's ``decompress``.
    """
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
