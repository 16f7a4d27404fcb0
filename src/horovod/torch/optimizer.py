"""DistributedOptimizer, which reduces gradients over the ranks before each optimizer step."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from horovod.common.frontends import TORCH as frontend
from horovod.common.ops import Adasum, Average, check_op
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
from horovod.common.training_loop.weights import check_weight, check_weighted_op
from horovod.torch import monitoring
from horovod.torch.compression import Compression
from horovod.torch.ops.tensors import set_id
from horovod.torch.reducer import stepping
from horovod.torch.reducer.adasum import DeltaReducer, check_set
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
from horovod.torch.reducer.stepping import Control
from horovod.torch.reducer.submissions import Options


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

    The result is the same object, so schedulers, ``param_groups`` and ``state`` remain valid. Its class becomes a
    subclass of its former class, with the same name. A second call replaces the changes of the first. A pickle or copy
    of the optimizer is a plain optimizer.

    Gradients are reduced during the backward pass. When ``backward()`` returns, ``param.grad`` holds the result. If
    this process is not in the process set, or the set has only one rank and the job is not elastic, the optimizer
    behaves as before, but has a few additional methods. All ranks must run the same number of backward passes between
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
            it, or none. Requires ``Average``. Default: all ranks have the same weight.

    Returns:
        torch.optim.Optimizer: ``optimizer``.

    Raises:
        ValueError: If an argument is invalid. The message names it.
        NotImplementedError: If ``op`` is ``Adasum`` and the process set does not support it.
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
    if anybody_else(process_set, frontend.require_job()):
        check_dtypes(names)
        # SparseAdam accepts only sparse gradients, so convert the results back to sparse tensors.
        sparse_again = isinstance(optimizer, torch.optim.SparseAdam)
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
    return _wrap(optimizer, Control(reducer, passes, members))


def _max_bucketed(requested: bool | None, compression: Any, groups: Any) -> int:
    """Return the maximum size in bytes of a gradient that can share a bucket, or 0 if buckets are disabled."""
    # Allow buckets only for compressors that treat each value separately. All other compressors use neighboring values,
    # so buckets would change their results.
    known = Compression
    by_number = compression in (known.none, known.fp16, known.bf16, known.wire_fp16, known.wire_bf16)
    if requested is False or groups or not by_number:
        return 0
    return EVERYTHING if requested else BucketSizes().small


class _Distributed:
    """Methods of the wrapped optimizer that a distributed optimizer overrides."""

    _hvd: Control
    _hvd_plain: type

    def step(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D417 - arguments of the plain optimizer
        """Take an optimizer step with reduced gradients.

        A rank that has run no backward pass since the last step first takes part in the other ranks' reduction.

        Args:
            closure (Callable, optional): Passed to the wrapped optimizer. Its loss is reduced as well, so that all
                ranks see the same value.

        Returns:
            The result of the wrapped optimizer's ``step``.

        Raises:
            HorovodInternalError: If a reduction failed.
        """
        result = self._hvd.step(super().step, args, kwargs)  # type: ignore[misc]
        self._hvd.stepped(self, self._parameter_names)
        return result

    # PyTorch wraps the step() of each new optimizer class to run hooks. Prevent this, because the wrapped optimizer's
    # step() already runs the hooks.
    step.hooked = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Reduce all gradients that have not been reduced yet.

        ``backward()`` normally does this. Only a rank that has run fewer than ``backward_passes_per_step`` backward
        passes must call this method. Afterwards, call ``step`` within a ``with optimizer.skip_synchronize():`` block.

        Raises:
            HorovodInternalError: If a reduction failed.
        """
        self._hvd.synchronize()
        self._hvd.synchronized = True

    def skip_synchronize(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager in which ``step`` does not reduce gradients.

        Raises:
            AssertionError: If ``op`` is ``Adasum``, whose reduction is part of ``step``.
        """
        if isinstance(self._hvd.reducer, DeltaReducer):
            raise AssertionError("skip_synchronize() cannot be used with op=Adasum, whose step() reduces the changes")
        return self._hvd.skipping()

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Reset the gradients as the wrapped optimizer does.

        Raises:
            AssertionError: If gradients are being reduced, because this was called from a hook during ``backward()``.
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
            ValueError: If ``passes`` is not a positive integer.
        """
        passes = check_passes(passes)
        self._hvd.passes = passes
        if self._hvd.reducer is not None:
            self._hvd.reducer.set_passes(passes)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state as the wrapped optimizer does, and discard gradients in flight."""
        self._hvd.synchronized = False
        self._hvd.should_synchronize = True
        if self._hvd.reducer is not None:
            self._hvd.reducer.reset()
        return super().load_state_dict(*args, **kwargs)  # type: ignore[misc]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group as the wrapped optimizer does, and reduce its gradients from then on.

        All ranks must add the same group.

        Args:
            param_group (dict): Same as in ``torch.optim.Optimizer``.

        Raises:
            ValueError: If a parameter has a complex or 8-bit floating-point dtype, or ``compression`` does not support
                it. The group is not added in this case.
        """
        super().add_param_group(param_group)  # type: ignore[misc]
        try:
            self._hvd.members.take_in(self._hvd.reducer)
        except ValueError:
            self.param_groups.pop()  # type: ignore[attr-defined]
            raise

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Pickle the optimizer as an instance of its plain class. Other processes lack the distributed class, which is
        # created at run time, and cannot use its hooks and handles.
        return _new, (self._hvd_plain,), self.__getstate__()

    _parameter_names: dict[torch.Tensor, str]
    backward_passes_per_step = stepping.backward_passes_per_step
    _requires_update = stepping.requires_update
    _handles = stepping.started
    _allreduce_grad_async = stepping.allreduce_grad_async


_DistributedOptimizer = _Distributed
"""Name of the class in earlier versions. Results of ``DistributedOptimizer`` are instances of it."""


def _new(plain: type) -> Any:
    return plain.__new__(plain)


def override(optimizer: Any, methods: type, plain: type | None = None) -> None:
    """Change the class of an optimizer to a subclass with the same name.

    The methods of the class ``methods`` override those of the original class. ``plain`` is the class that copies and
    pickles of the optimizer have, and is stored as ``_hvd_plain``. Default: the original class.
    """
    former = type(optimizer)
    members = {
        "__module__": former.__module__,
        "__qualname__": former.__qualname__,
        "__doc__": former.__doc__,
        "_hvd_plain": plain or former,
    }
    optimizer.__class__ = type(former.__name__, (methods, former), members)


def _wrap(optimizer: Any, control: Control) -> Any:
    override(optimizer, _Distributed)
    optimizer._hvd = control
    optimizer._parameter_names = control.members.names
    patched = vars(optimizer).get("step")
    if patched is not None:
        # The object has its own attribute ``step``, which hides the class's method. Learning rate schedulers set one.
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
