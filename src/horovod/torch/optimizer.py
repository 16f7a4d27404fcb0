"""DistributedOptimizer, which reduces an optimizer's gradients over the ranks before each step."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from horovod.common.contract.log import warn_user
from horovod.common.frontends import TORCH as face
from horovod.common.ops import Adasum, Average, Sum, check_op
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop import uneven
from horovod.common.training_loop.gradients import (
    BucketSizes,
    anybody_else,
    check_groups,
    check_passes,
    check_predivide,
    groups_of,
    scales,
)
from horovod.common.training_loop.steps import marks
from horovod.common.training_loop.weights import check_weight, check_weighted_op, current
from horovod.torch import monitoring
from horovod.torch.compression import Compression
from horovod.torch.monitoring import check_after_step
from horovod.torch.ops.allreduce import allreduce_
from horovod.torch.ops.tensors import set_id
from horovod.torch.reducer import coverage
from horovod.torch.reducer.adasum import DeltaReducer, check_set
from horovod.torch.reducer.coverage import Begun, named
from horovod.torch.reducer.gradients import GradientReducer
from horovod.torch.reducer.parameter_names import (
    Members,
    check_compression,
    check_dtypes,
    make_groups,
    name_parameters,
    unique_on_the_wire,
)
from horovod.torch.reducer.rounds import EVERYTHING
from horovod.torch.reducer.submissions import NoiseSampler, Options


def reducing(closure: Callable[[], Any], reducer: GradientReducer) -> Callable[[], Any]:
    """Return a closure that also reduces the loss and the gradients over the ranks.

    All ranks must call it. Optimizers with a line search, such as LBFGS, use the loss to decide how often to call the
    closure. If each rank used its own loss, ranks could make a different number of calls, and a rank with more calls
    would wait forever.

    The loss can be a number, a tensor with one element, or None. It is summed if ``op`` is Sum and averaged otherwise,
    so that the gradients match the loss.
    """

    def run() -> Any:
        # Reset the state of the last step, because only some ranks might run a backward pass in the closure.
        reducer.stepped()
        reducer.coverage.leave_alone()
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


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    gradient_as_bucket_view: bool | None = None,
    weight: float | Callable[[], float] | None = None,
) -> Any:
    """Make ``optimizer`` distributed and return it.

    The result is the same object. Its class becomes a subclass of its former class, with the same name, so schedulers,
    ``param_groups`` and ``state`` remain valid. A second call replaces the first wrapping. A pickle or copy of the
    optimizer is a plain optimizer.

    Gradients are reduced during the backward pass. When ``backward()`` returns, ``param.grad`` holds the result. If
    this process is not in the process set, or the set has only one rank and the job is not elastic, the optimizer
    behaves like the plain one with a few more methods. All ranks must run the same number of backward passes between
    steps, or none. If only some ranks have a gradient for a parameter, the others contribute zeros. If no rank has one,
    it stays None.

    Args:
        optimizer (torch.optim.Optimizer): Optimizer to make distributed.
        named_parameters (Iterable[tuple[str, torch.Tensor]], optional): Names of the parameters, the same on all ranks,
            such as ``model.named_parameters()``. Default: parameters are matched by position.
        compression (Compressor): See ``Compression``. The ``wire_*`` compressors require float32 parameters and
            ``Average`` or ``Sum``. Default: none.
        backward_passes_per_step (int): Number of backward passes over which gradients accumulate locally; the last one
            reduces them. Default: 1.
        op (int): ``Average`` (default), ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``. With ``Adasum``, each
            rank steps with its own gradients and ``step`` reduces the changes of the parameters. This requires the
            global process set, with a size that is a power of two.
        gradient_predivide_factor (float): With ``Average`` over n ranks and a factor f, gradients are divided by f
            before and by n/f after the summation. Default: 1.0.
        num_groups (int): Deprecated; use ``groups``.
        groups (int or Sequence[Sequence[torch.Tensor]], optional): Number of groups, or lists of parameters. The
            gradients of a group are reduced together.
        sparse_as_dense (bool): Convert sparse gradients to dense ones instead of gathering them. For SparseAdam, which
            requires sparse gradients, the results are converted back. Default: False.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.
        gradient_as_bucket_view (bool, optional): Make ``param.grad`` a view of a bucket from the second step on. A
            bucket is memory shared by the ranks of a host, or GPU memory, and is reduced in one allreduce. True uses
            buckets for gradients of all sizes, False for none. None (default) uses them for gradients of up to 256 KiB,
            because copying a larger one takes as long as the bucket saves. All ranks must enable it. Buckets are not
            used for sparse gradients, non-contiguous parameters (channels last), ``groups``, and compressors that do
            not treat each value separately. These gradients are reduced one by one. The program can still assign any
            tensor to ``param.grad``. A gradient that it keeps across ``zero_grad()`` keeps its value.
        weight (float or Callable[[], float], optional): Number of samples over which this rank's gradients of a step
            are the mean, or a function that returns it and is called when a backward pass begins. The reduced gradients
            are then the mean over all ranks' samples; see ``hvd.weight``, which takes precedence. All ranks must pass
            it, or none. Requires ``Average``. Default: all ranks count alike.

    Returns:
        torch.optim.Optimizer: ``optimizer``.

    Raises:
        ValueError: An argument is invalid. The message names it.
        NotImplementedError: ``op`` is ``Adasum`` and the process set does not support it.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"optimizer must be a torch.optim.Optimizer, got a {type(optimizer).__name__}")
    passes = check_passes(backward_passes_per_step)
    op = check_op(op)
    predivide = check_predivide(gradient_predivide_factor, op)
    if gradient_as_bucket_view not in (None, True, False):
        raise ValueError(f"gradient_as_bucket_view must be True, False or None, got {gradient_as_bucket_view!r}")
    check_weighted_op(op, weight)
    if weight is not None and not callable(weight):
        check_weight(weight)
    groups = groups_of(num_groups, groups)
    groups = check_groups(groups, torch.is_tensor, id, lambda p: f"a parameter of shape {tuple(p.shape)}", "parameters")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    names = name_parameters(optimizer.param_groups, named_parameters)
    set_id(process_set, "DistributedOptimizer")
    if op == Adasum:
        check_set(process_set)
    check_compression(compression, names, op)

    reducer: GradientReducer | DeltaReducer | None = None
    members = Members(optimizer, names)
    if anybody_else(process_set, face.require_job()):
        check_dtypes(names)
        # SparseAdam accepts only sparse gradients, so convert the results back to sparse tensors.
        sparse_again = sparse_as_dense and isinstance(optimizer, torch.optim.SparseAdam)
        options = Options(
            process_set,
            compression,
            op,
            *scales(predivide),
            sparse_as_dense,
            passes,
            make_groups(groups, parameters, names, process_set),
            0 if sparse_again else _max_bucketed(gradient_as_bucket_view, compression, groups),
            sparse_again,
            weight,
        )
        unwrap(optimizer)
        reduce = DeltaReducer if op == Adasum else GradientReducer
        reducer = reduce(members, unique_on_the_wire(optimizer, names, process_set), options)
    else:
        unwrap(optimizer)
    if reducer is not None and names and process_set.process_set_id == 0:
        uneven.optimizers[reducer.name] = optimizer
    monitoring.watch_data_loaders()
    return _wrap(optimizer, _Control(reducer, passes, members))


def _max_bucketed(wanted: bool | None, compression: Any, groups: Any) -> int:
    """Return the maximum size in bytes of a gradient in a bucket, or 0 to disable buckets."""
    # For other compressors, a value's result depends on its neighbors, so a bucket would change the results.
    known = Compression
    by_number = compression in (known.none, known.fp16, known.bf16, known.wire_fp16, known.wire_bf16)
    if wanted is False or groups or not by_number:
        return 0
    return EVERYTHING if wanted else BucketSizes().small


def _no_step(*args: Any, **kwargs: Any) -> None:
    """Do nothing, in place of a step whose total weight is 0."""


class _Control:
    """Additional state of a distributed optimizer, including its reducer."""

    __slots__ = (
        *("begun", "in_step", "members", "noise", "passes", "reducer", "should_synchronize", "synchronized", "warned"),
    )

    def __init__(self, reducer: GradientReducer | DeltaReducer | None, passes: int, members: Members) -> None:
        self.reducer = reducer
        self.passes = passes
        self.members = members
        self.begun = Begun()
        self.noise = NoiseSampler()
        self.should_synchronize = True
        # True if the user has called synchronize() since the last step.
        self.synchronized = False
        self.in_step = False
        # True after a warning about gradients that were not reduced.
        self.warned = False

    def step(self, step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Reduce the gradients if necessary, then run the plain optimizer's method ``step``."""
        if self.in_step:
            # Another step method of the same optimizer has called step(), so the gradients are already reduced.
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
            # With a closure, ignore existing gradients that no backward pass has produced, because the closure computes
            # new ones.
            self.synchronize(only_new=closure is not None)
            if closure is not None and reducer is not None:
                closure = reducing(closure, reducer)
                args, kwargs = ((closure, *args[1:]), kwargs) if args else (args, {**kwargs, "closure": closure})
        elif isinstance(reducer, GradientReducer):
            self._warn_of_left_out(
                reducer, " in optimizer.skip_synchronize()", "call optimizer.synchronize() before it, unless"
            )
        if reducer is not None and closure is None and reducer.nothing_counted:
            step = _no_step
        return self._plain(step, args, kwargs)

    def _warn_of_left_out(self, reducer: GradientReducer, where: str, advice: str) -> None:
        if not self.warned and (left_out := reducer.coverage.left_out()):
            self.warned = True
            warn_user(
                f"optimizer.step(){where} uses gradients that were not reduced: {named(left_out)}; {advice} ranks may "
                "differ"
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

        If ``only_new`` is False, gradients that no round has included are reduced too.
        """
        with self.begun.apart(self.reducer) if self.begun else contextlib.nullcontext():
            if self.reducer is not None:
                self.reducer.synchronize(only_new=only_new)
                if not only_new:
                    self.reducer.reduce_left_out()

    def stepped(self, optimizer: Any, names: dict[torch.Tensor, str]) -> None:
        """Record a completed step of ``optimizer``. ``names`` maps each parameter to its name."""
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


class _Distributed:
    """Methods that a distributed optimizer overrides."""

    _hvd: _Control
    _hvd_plain: type

    def step(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D417 - arguments of the plain optimizer
        """Take an optimizer step with reduced gradients.

        A rank that has run no backward pass since the last step first takes part in the other ranks' reduction.

        Args:
            closure (Callable, optional): Closure as for the plain optimizer. Its loss is reduced as well, so that all
                ranks see the same value.

        Returns:
            The result of the plain optimizer's ``step``.

        Raises:
            HorovodInternalError: A reduction failed.
        """
        result = self._hvd.step(super().step, args, kwargs)  # type: ignore[misc]
        self._hvd.stepped(self, self._parameter_names)
        return result

    # PyTorch wraps the step of each new optimizer class to run hooks. Call the plain step, which already runs the
    # hooks.
    step.hooked = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Reduce all gradients that are not reduced yet.

        ``backward()`` normally does this. Only a rank that has run fewer than ``backward_passes_per_step`` backward
        passes must call this method. Afterwards, call ``step`` within a ``with optimizer.skip_synchronize():`` block.

        Raises:
            HorovodInternalError: A reduction failed.
        """
        self._hvd.synchronize()
        self._hvd.synchronized = True

    def skip_synchronize(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager within which ``step`` does not reduce gradients.

        Raises:
            AssertionError: ``op`` is ``Adasum``, whose reduction is part of ``step``.
        """
        if isinstance(self._hvd.reducer, DeltaReducer):
            raise AssertionError("skip_synchronize() cannot be used with op=Adasum, whose step() reduces the changes")
        return self._hvd.skipping()

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Reset the gradients as the plain optimizer does.

        Raises:
            AssertionError: Gradients are being reduced, because this was called from a hook during ``backward()``.
        """
        reducer = self._hvd.reducer
        if reducer is not None and not self._hvd.in_step:
            reducer.zeroed()
            if reducer.busy:
                raise AssertionError("zero_grad() during backward() is a race, because gradients are being reduced")
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward passes after which gradients are reduced.

        Args:
            passes (int): Number of backward passes per step, at least 1.

        Raises:
            ValueError: ``passes`` is not a positive integer.
        """
        passes = check_passes(passes)
        self._hvd.passes = passes
        if self._hvd.reducer is not None:
            self._hvd.reducer.set_passes(passes)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state as the plain optimizer does, and discard gradients in flight."""
        self._hvd.synchronized = False
        self._hvd.should_synchronize = True
        if self._hvd.reducer is not None:
            self._hvd.reducer.reset()
        return super().load_state_dict(*args, **kwargs)  # type: ignore[misc]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group as the plain optimizer does, and reduce its gradients from now on.

        All ranks must add the same group.

        Args:
            param_group (dict): Parameter group as for ``torch.optim.Optimizer``.

        Raises:
            ValueError: A parameter has a complex or 8-bit floating-point dtype, or ``compression`` does not support it.
                The group is not added in this case.
        """
        super().add_param_group(param_group)  # type: ignore[misc]
        try:
            self._hvd.members.take_in(self._hvd.reducer)
        except ValueError:
            self.param_groups.pop()  # type: ignore[attr-defined]
            raise

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Pickle the optimizer as its plain class. Other processes do not have this class, which is created at run time,
        # and cannot use its hooks and handles.
        return _new, (self._hvd_plain,), self.__getstate__()

    _parameter_names: dict[torch.Tensor, str]
    backward_passes_per_step = coverage.backward_passes_per_step
    _requires_update = coverage.requires_update
    _handles = coverage.started
    _allreduce_grad_async = coverage.allreduce_grad_async


_DistributedOptimizer = _Distributed
"""Name of the class in earlier versions. Results of ``DistributedOptimizer`` are instances of it."""


def _new(plain: type) -> Any:
    return plain.__new__(plain)


def override(optimizer: Any, methods: type, plain: type | None = None) -> None:
    """Change the class of an optimizer to a subclass with the same name.

    ``methods`` override the methods of the former class. ``plain`` is the class of pickled copies, which is stored as
    ``_hvd_plain``. Default: the former class.
    """
    former = type(optimizer)
    members = {
        "__module__": former.__module__,
        "__qualname__": former.__qualname__,
        "__doc__": former.__doc__,
        "_hvd_plain": plain or former,
    }
    optimizer.__class__ = type(former.__name__, (methods, former), members)


def _wrap(optimizer: Any, control: _Control) -> Any:
    override(optimizer, _Distributed)
    optimizer._hvd = control
    optimizer._parameter_names = control.members.names
    patched = vars(optimizer).get("step")
    if patched is not None:
        # The object has its own attribute ``step``, set by a learning rate scheduler for example, which hides the
        # class's method.
        optimizer.step = _patch_again(optimizer, patched)
    return optimizer


def _patch_again(optimizer: Any, patched: Callable[..., Any]) -> Any:
    itself = weakref.ref(optimizer)

    @functools.wraps(patched)
    def step(*args: Any, **kwargs: Any) -> Any:
        target = itself()
        assert target is not None
        result = target._hvd.step(patched, args, kwargs)
        target._hvd.stepped(target, target._parameter_names)
        return result

    step._hvd_patched = patched  # type: ignore[attr-defined]
    return step


def unwrap(optimizer: Any) -> None:
    """Turn a distributed optimizer back into a plain optimizer."""
    if not isinstance(optimizer, _Distributed):
        return
    if optimizer._hvd.reducer is not None:
        optimizer._hvd.reducer.reset()
        optimizer._hvd.reducer.close()
    step = vars(optimizer).get("step")
    if hasattr(step, "_hvd_patched"):
        optimizer.step = step._hvd_patched  # type: ignore[method-assign]
    optimizer.__class__ = optimizer._hvd_plain
    del optimizer._hvd, optimizer._parameter_names
