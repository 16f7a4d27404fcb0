"""DistributedOptimizer: any torch optimizer, with gradients reduced over the ranks before each step."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from horovod.common import objects
from horovod.common.contract.frames import warn_user
from horovod.common.faces import TORCH as face
from horovod.common.gradients import (
    anybody_else,
    check_groups,
    check_passes,
    check_predivide,
    groups_of,
    parts,
    scales,
)
from horovod.common.ops import Adasum, Average, check_op
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.steps import marks
from horovod.torch import data_wait, noticing, old_names
from horovod.torch.adasum import DeltaReducer, check_set
from horovod.torch.bucket_plan import SMALL
from horovod.torch.bucketing import EVERYTHING
from horovod.torch.closures import reducing
from horovod.torch.compression import Compression
from horovod.torch.coverage import named
from horovod.torch.gradients import GradientReducer
from horovod.torch.in_sync import check_after_step
from horovod.torch.old_names import Begun
from horovod.torch.ops.tensors import set_id
from horovod.torch.options import Options
from horovod.torch.parameter_names import Members, check_compression, check_dtypes, name_parameters, unique_on_the_wire


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
) -> Any:
    """Makes ``optimizer`` distributed and returns it: the same object, whose class is from now on a subclass of the
    one it had, with the same name. So schedulers made before and after, ``param_groups`` and ``state`` just stay.
    Wrapping it again replaces the first wrapping.

    Gradients are reduced while the backward pass runs, if this process is in the set and the set has more than one
    rank (or the job is elastic), and when ``backward()`` returns, that is done; otherwise it is the plain optimizer
    with a few more methods. All ranks go backward equally often between steps, or not at all. A parameter that has a
    gradient on some ranks only counts as zeros on the others; one that has none anywhere keeps None. It pickles and
    copies as the plain optimizer.

    ``named_parameters``: names must be equal on all ranks; without them parameters are matched by position.
    ``compression``: see ``Compression``; its wire_* take float32 parameters and op Average or Sum.
    ``backward_passes_per_step``: gradients sum up locally over so many backward passes, and are reduced in the last.
    ``op``: Average, Sum, Min, Max, Product, or Adasum, with which each rank takes the step with its own gradients and
    the changes of the parameters are reduced in ``step`` (adasum.py); on all ranks, a power of two of them.
    ``gradient_predivide_factor`` f, for Average: gradients are divided by f before and by n/f after the sum.
    ``groups``: a number of groups, or lists of parameters; the gradients of a group are reduced together.
    ``num_groups``: deprecated. ``sparse_as_dense``: sparse gradients are made dense instead of being gathered, and
    sparse again for SparseAdam, which takes no others.

    ``gradient_as_bucket_view``: from the second step on ``param.grad`` are views of buckets, memory that the ranks of a
    host share, or of the GPU, and one allreduce takes a whole bucket. True: gradients of all sizes; False: none; None
    (the default): those of up to 256 KiB, since the copy of a large one into a bucket costs what it saves. All ranks
    must want it. Not for sparse gradients, parameters that are not contiguous (channels last), ``groups``, and
    compression other than of single numbers; these are reduced one by one. Anything may be assigned to ``param.grad``,
    and a gradient that the program keeps over ``zero_grad()`` keeps its value.

    Raises ValueError naming the argument; NotImplementedError for op=Adasum on other sets of ranks.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"optimizer is a {type(optimizer).__name__}; accepted is a torch.optim.Optimizer")
    passes = check_passes(backward_passes_per_step)
    op = check_op(op)
    predivide = check_predivide(gradient_predivide_factor, op)
    if gradient_as_bucket_view not in (None, True, False):
        raise ValueError(f"gradient_as_bucket_view is {gradient_as_bucket_view!r}; accepted are True, False and None")
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
        # An optimizer that takes nothing else gets its gradients back sparse.
        sparse_again = sparse_as_dense and isinstance(optimizer, torch.optim.SparseAdam)
        options = Options(
            process_set,
            compression,
            op,
            *scales(predivide),
            sparse_as_dense,
            passes,
            _make_groups(groups, parameters, names, process_set),
            0 if sparse_again else _bucket_most(gradient_as_bucket_view, compression, groups),
            sparse_again,
        )
        unwrap(optimizer)
        reduce = DeltaReducer if op == Adasum else GradientReducer
        reducer = reduce(members, unique_on_the_wire(optimizer, names, process_set), options)
    else:
        unwrap(optimizer)
    data_wait.watch()
    return _wrap(optimizer, _Control(reducer, passes, members))


def _bucket_most(wanted: bool | None, compression: Any, groups: Any) -> int:
    """Bytes of the largest gradient that shares a bucket; 0: none do."""
    # A compressor that looks at more than one number at a time would give other results for a bucket.
    known = Compression
    by_number = compression in (known.none, known.fp16, known.bf16, known.wire_fp16, known.wire_bf16)
    if wanted is False or groups or not by_number:
        return 0
    return EVERYTHING if wanted else SMALL


def _make_groups(
    groups: int | Sequence[Sequence[torch.Tensor]] | None,
    parameters: list[torch.Tensor],
    names: dict[torch.Tensor, str],
    process_set: ProcessSet,
) -> list[list[torch.Tensor]]:
    """The groups as rank 0 (of the set) has them, without parameters that are frozen or of another optimizer."""
    if not groups:
        return []
    if isinstance(groups, int):
        mine: list[list[str]] = [
            [names[p] for p in part] for part in parts([p for p in parameters if p.requires_grad], groups)
        ]
    else:
        mine = [[names[p] for p in group if p in names and p.requires_grad] for group in groups]
    assert process_set.ranks is not None
    theirs = objects.broadcast_object(mine, process_set.ranks[0], "DistributedOptimizer.groups", process_set, face=face)
    by_name = {name: p for p, name in names.items()}
    unknown = [name for group in theirs for name in group if name not in by_name]
    if unknown:
        raise ValueError(
            f"groups: rank {process_set.ranks[0]} has parameters {unknown} in groups, which are unknown here"
        )
    return [[by_name[name] for name in group] for group in theirs if group]


class _Control:
    """What a distributed optimizer has beside its reducer."""

    __slots__ = ("begun", "in_step", "members", "passes", "reducer", "should_synchronize", "synchronized", "warned")

    def __init__(self, reducer: GradientReducer | DeltaReducer | None, passes: int, members: Members) -> None:
        self.reducer = reducer
        self.passes = passes
        self.members = members
        self.begun = Begun()
        self.should_synchronize = True
        self.synchronized = False  # by the user, since the last step
        self.in_step = False
        self.warned = False  # that gradients were left out

    def step(self, step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs ``step``, the one of the plain optimizer, on reduced gradients."""
        if self.in_step:  # a step that calls itself through another name
            return step(*args, **kwargs)
        reducer = self.reducer
        if isinstance(reducer, DeltaReducer):
            return reducer.step(lambda: self._plain(step, args, kwargs))
        if self.should_synchronize:
            if self.synchronized:
                warn_user(
                    "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(); "
                    "gradients are reduced when backward() returns, so neither is needed any more",
                )
            closure = args[0] if args else kwargs.get("closure")
            # A closure makes its own gradients; those from before it matter only if a backward pass made them.
            self.synchronize(only_new=closure is not None)
            if closure is not None and reducer is not None:
                closure = reducing(closure, reducer)
                args, kwargs = ((closure, *args[1:]), kwargs) if args else (args, {**kwargs, "closure": closure})
        elif isinstance(reducer, GradientReducer):
            self._warn_of_left_out(reducer)
        return self._plain(step, args, kwargs)

    def _warn_of_left_out(self, reducer: GradientReducer) -> None:
        if not self.warned and (left_out := reducer.coverage.left_out()):
            self.warned = True
            warn_user(
                f"optimizer.step() in optimizer.skip_synchronize() uses gradients that were not reduced: "
                f"{named(left_out)}; call optimizer.synchronize() before it, unless ranks are to differ"
            )

    def _plain(self, step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.in_step = True
        try:
            return step(*args, **kwargs)
        finally:
            self.in_step = False
            self.synchronized = False
            if self.reducer is not None:
                self.reducer.stepped()

    def synchronize(self, only_new: bool = False) -> None:
        """See ``GradientReducer.synchronize``. Without ``only_new``, no gradient is left that was not reduced."""
        with self.begun.apart(self.reducer) if self.begun else contextlib.nullcontext():
            if self.reducer is not None:
                self.reducer.synchronize(only_new=only_new)
                if not only_new:
                    self.reducer.reduce_left_out()

    def stepped(self, optimizer: Any, names: dict[torch.Tensor, str]) -> None:
        """A step of ``optimizer`` is done. ``names``: of its parameters."""
        if not self.in_step:
            marks.optimizer(self)
        if self.reducer is not None and not self.in_step:
            count, process_set = self.reducer.progress.steps, self.reducer.options.process_set
            steps = count.add()
            noticing.after_step(names, f"{self.reducer.name} {count.era}", process_set, steps, not self.warned)
            check_after_step(optimizer, names, process_set, steps)

    @contextlib.contextmanager
    def skipping(self) -> Iterator[None]:
        self.should_synchronize = False
        try:
            yield
        finally:
            self.should_synchronize = True


class _Distributed:
    """What the class of a distributed optimizer has before that of the plain one."""

    _hvd: _Control
    _hvd_plain: type

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """``step(closure=None)``: what the plain optimizer does. On a rank that has made no backward pass since the
        last step it first waits for the gradients of those that have.

        With a closure, its loss is reduced as well, so that all ranks see the same one. Raises HorovodInternalError
        when a reduction fails.
        """
        result = self._hvd.step(super().step, args, kwargs)  # type: ignore[misc]
        self._hvd.stepped(self, self._parameter_names)
        return result

    # Torch wraps the step of each new optimizer class to run hooks; the plain class's step, which this calls, has it
    # already.
    step.hooked = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Sees to it that all gradients are reduced. They are when ``backward()`` returns, so that it has something to
        do only on a rank that has made no backward pass, or fewer than ``backward_passes_per_step``. ``step`` is then
        to be called inside of ``with optimizer.skip_synchronize():``."""
        self._hvd.synchronize()
        self._hvd.synchronized = True

    def skip_synchronize(self) -> contextlib.AbstractContextManager[None]:
        """In this context ``step`` does not reduce gradients. AssertionError with op=Adasum, whose reduction is a part
        of ``step``."""
        if isinstance(self._hvd.reducer, DeltaReducer):
            raise AssertionError("skip_synchronize() has no meaning with op=Adasum: step() reduces what it has changed")
        return self._hvd.skipping()

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As in the plain optimizer. AssertionError while gradients are being reduced, in a hook for one."""
        reducer = self._hvd.reducer
        if reducer is not None and not self._hvd.in_step:
            reducer.zeroed()
            if reducer.busy:
                raise AssertionError("zero_grad() during backward() is a race: gradients are being reduced")
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Reduces gradients after so many backward passes from now on. ValueError unless it is an integer above 0."""
        passes = check_passes(passes)
        self._hvd.passes = passes
        if self._hvd.reducer is not None:
            self._hvd.reducer.set_passes(passes)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As in the plain optimizer; gradients on their way are forgotten."""
        self._hvd.synchronized = False
        self._hvd.should_synchronize = True
        if self._hvd.reducer is not None:
            self._hvd.reducer.reset()
        return super().load_state_dict(*args, **kwargs)  # type: ignore[misc]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in the plain optimizer; the new parameters' gradients are reduced as well. All ranks add the same.

        Raises ValueError, adding nothing, for a parameter of complex or 8-bit floating dtype, and for one that
        ``compression`` cannot carry.
        """
        super().add_param_group(param_group)  # type: ignore[misc]
        try:
            self._hvd.members.take_in(self._hvd.reducer)
        except ValueError:
            self.param_groups.pop()  # type: ignore[attr-defined]
            raise

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class was made at run time, so another process does not have it; hooks and handles mean nothing there
        # anyway.
        return _new, (self._hvd_plain,), self.__getstate__()

    _parameter_names: dict[torch.Tensor, str]
    backward_passes_per_step = old_names.backward_passes_per_step
    _requires_update = old_names.requires_update
    _handles = old_names.started
    _allreduce_grad_async = old_names.allreduce_grad_async


_DistributedOptimizer = _Distributed
"""Its name of old; an instance of it is what ``DistributedOptimizer`` returns."""


def _new(plain: type) -> Any:
    return plain.__new__(plain)


def _wrap(optimizer: Any, control: _Control) -> Any:
    plain = type(optimizer)
    members = {
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__doc__": plain.__doc__,
        "_hvd_plain": plain,
    }
    optimizer.__class__ = type(plain.__name__, (_Distributed, plain), members)
    optimizer._hvd = control
    optimizer._parameter_names = control.members.names
    patched = vars(optimizer).get("step")
    if patched is not None:
        # Somebody, a learning-rate scheduler for one, put a step of its own into the object, where it hides the
        # class's.
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
    """Makes a distributed optimizer plain again; does nothing to a plain one."""
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
