"""The reduction of a model's gradients while the backward pass still runs.

Each parameter has a hook that autograd calls when its gradient is complete; the hook hands the gradient to the engine
and returns. What is left is done in ``synchronize``: submit what is there but not yet on its way, find out what only
other ranks have, wait for all.

Ranks may have gradients for different parameters (a branch of the model that only some ranks' data took). So in
``synchronize`` every rank contributes a vector of flags, one byte for each parameter, to a small reduction with Max:
0 for no gradient, 1 for a dense one, 1 + k for a sparse one with k sparse dimensions. A rank that lacks a gradient
waits for the outcome and contributes zeros if some rank has one. If no rank has one, the gradient stays None, as it
does in a process that trains alone, so momentum and weight decay leave the parameter alone. Ranks that have all
gradients never wait for the flags.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from horovod.common.ops import Average, Max
from horovod.common.process_sets import ProcessSet
from horovod.torch.compression import Compression, wire_of
from horovod.torch.ops import handles
from horovod.torch.ops.allreduce import submit
from horovod.torch.ops.tensors import plain
from horovod.torch.residuals import Residuals
from horovod.torch.sparse import sparse_allreduce_async


@dataclass
class Options:
    """How gradients are reduced; see ``DistributedOptimizer``."""

    process_set: ProcessSet
    compression: Any = Compression.none
    op: int = Average
    prescale: float = 1.0
    postscale: float = 1.0
    sparse_as_dense: bool = False
    passes: int = 1
    groups: list[list[torch.Tensor]] = field(default_factory=list)


class _Group:
    """Parameters whose gradients are submitted together."""

    __slots__ = ("members", "waiting_for")

    def __init__(self, members: list[torch.Tensor]) -> None:
        self.members = members
        self.waiting_for = len(members)


class GradientReducer:
    """The gradients of one optimizer."""

    def __init__(self, parameters: Sequence[torch.Tensor], names: dict[torch.Tensor, str], options: Options) -> None:
        """``names``: of every parameter, unique among the operations of the process set and equal on all ranks."""
        self.options = options
        self._parameters: list[torch.Tensor] = []
        self._names: dict[torch.Tensor, str] = {}
        self._left: dict[torch.Tensor, int] = {}  # backward passes until the gradient is reduced
        self._hooks: dict[torch.Tensor, Any] = {}
        # Per parameter that is on its way: what waits for the result and puts it into the gradient.
        self._pending: dict[torch.Tensor, Callable[[], None]] = {}
        self._wire = wire_of(options.compression)
        self._residuals = Residuals() if getattr(options.compression, "error_feedback", False) else None
        self._groups = [_Group(members) for members in options.groups]
        self._group_of = {p: group for group in self._groups for p in group.members}
        self.add(parameters, names)

    def add(self, parameters: Iterable[torch.Tensor], names: dict[torch.Tensor, str]) -> None:
        """Takes care of more parameters."""
        self._names.update(names)
        for p in parameters:
            self._parameters.append(p)
            self._left[p] = self.options.passes
            self._hook(p)

    def close(self) -> None:
        """Removes the hooks; to be used when nothing is pending."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    @property
    def busy(self) -> bool:
        """Are gradients on their way?"""
        return bool(self._pending)

    def reset(self) -> None:
        """Waits for what is on its way, ignoring failures, forgets what compression has lost so far, and starts to
        count backward passes anew."""
        with contextlib.suppress(Exception):
            self._finish()
        if self._residuals is not None:
            self._residuals.clear()
        self._restart()

    def set_passes(self, passes: int) -> None:
        """Reduces after so many backward passes from now on."""
        self.options.passes = passes
        self.reset()

    def _hook(self, p: torch.Tensor) -> None:
        if not p.requires_grad or p in self._hooks:
            return
        # A weak reference: hooks live as long as the parameter, and an optimizer that is gone must not go on reducing.
        itself = weakref.ref(self)

        def on_gradient(p: torch.Tensor) -> None:
            reducer = itself()
            if reducer is not None:
                reducer._on_gradient(p)

        self._hooks[p] = p.register_post_accumulate_grad_hook(on_gradient)

    def _on_gradient(self, p: torch.Tensor) -> None:
        left = self._left[p] - 1
        if left < 0:
            raise AssertionError(
                f"gradient {self._names[p]!r} was computed more than backward_passes_per_step={self.options.passes} "
                "times before step() or synchronize(); raise backward_passes_per_step to sum up gradients locally"
            )
        self._left[p] = left
        if left == 0:
            group = self._group_of.get(p)
            if group is None:
                self._submit_one(p)
            else:
                group.waiting_for -= 1
                if group.waiting_for == 0:
                    self._submit_group(group)

    def _submit(
        self, p: torch.Tensor, grad: torch.Tensor, name: str = "", group: str = "", group_size: int = 0
    ) -> None:
        """Puts ``grad``, the dense gradient of ``p`` or what stands for it, on its way; the result is written into
        it."""
        options = self.options
        grad = grad.detach()
        tensor, context = options.compression.compress(grad)
        # Another layout than the plain one (channels last) may not be the same on all ranks.
        tensor = plain(tensor)
        name = name or "allreduce." + self._names[p]
        residual = self._residuals.of(p, tensor) if self._residuals is not None else None
        work = submit(
            tensor,
            tensor,
            name,
            options.op,
            options.prescale,
            options.postscale,
            options.process_set,
            group,
            group_size,
            wire=self._wire,
            residual=residual,
        )

        def finish() -> None:
            handles.wait(work, (tensor, residual))
            result = options.compression.decompress(tensor, context)
            if result is not grad:
                grad.copy_(result)

        self._pending[p] = finish

    def _submit_one(self, p: torch.Tensor) -> None:
        grad = p.grad
        assert grad is not None
        if not grad.is_sparse:
            self._submit(p, grad)
        elif self.options.sparse_as_dense:
            p.grad = grad.to_dense()
            self._submit(p, p.grad)
        else:
            wait = sparse_allreduce_async(grad, self._names[p], self.options.op, self.options.process_set)

            def finish() -> None:
                p.grad = wait()

            self._pending[p] = finish

    def _submit_group(self, group: _Group, stand_ins: dict[torch.Tensor, torch.Tensor] | None = None) -> None:
        """Submits a group together. ``stand_ins``: zeros for members without a gradient, which stay without one.

        Sparse gradients cannot be part of a group and go alone.
        """
        grads = {}
        for p in group.members:
            if stand_ins and p in stand_ins:
                grads[p] = stand_ins[p]
            elif self._sparse_dims(p):
                self._submit_one(p)
            else:
                if p.grad.is_sparse:
                    p.grad = p.grad.to_dense()
                grads[p] = p.grad
        name = f"grouped_allreduce.{self._names[group.members[0]]}"
        for i, (p, grad) in enumerate(grads.items()):
            self._submit(p, grad, f"{name}_{i + 1}of{len(grads)}", name, len(grads))

    def _sparse_dims(self, p: torch.Tensor) -> int:
        """Sparse dimensions of the gradient as it will be reduced, 0 for a dense one."""
        return p.grad.sparse_dim() if p.grad.is_sparse and not self.options.sparse_as_dense else 0

    def synchronize(self, only_new: bool) -> None:
        """Completes the reduction of every gradient; all ranks of the set call it.

        ``only_new``: leaves gradients alone that no backward pass has touched since the last time; otherwise all that
        are there are reduced. Raises HorovodInternalError when ranks disagree or one is lost; nothing is pending then.
        """
        if not self._parameters:
            return
        try:
            with torch.no_grad():
                self._complete(only_new)
        except Exception:
            self.reset()
            raise
        self._restart()

    def _complete(self, only_new: bool) -> None:
        flags = self._flags(only_new)
        outcome = torch.tensor(flags, dtype=torch.uint8)
        name = f"allreduce.gradients.{self._names[self._parameters[0]]}"
        vote = submit(outcome, outcome, name, Max, 1.0, 1.0, self.options.process_set)
        self._pending[outcome] = lambda: handles.wait(vote, outcome)
        if not self._submit_mine(dict(zip(self._parameters, flags, strict=True))):
            handles.wait(vote, outcome)
            self._submit_theirs(dict(zip(self._parameters, outcome.tolist(), strict=True)))
        self._finish()

    def _flags(self, only_new: bool) -> list[int]:
        """By parameter: 0 without a gradient to reduce, 1 for a dense one, 1 + sparse dimensions for a sparse one."""
        passes = self.options.passes
        return [
            0 if p.grad is None or (only_new and p in self._hooks and left == passes) else 1 + self._sparse_dims(p)
            for p, left in self._left.items()
        ]

    def _submit_mine(self, flags: dict[torch.Tensor, int]) -> bool:
        """Submits what this rank has and has not submitted yet. Is everything on its way then?"""
        everything = True
        for p, flag in flags.items():
            if p not in self._pending and p not in self._group_of:
                if flag:
                    self._submit_one(p)
                everything = everything and flag > 0
        for group in self._groups:
            if not self._is_pending(group):
                complete = all(flags[p] for p in group.members)
                if complete:
                    self._submit_group(group)
                everything = everything and complete
        return everything

    def _submit_theirs(self, flags: dict[torch.Tensor, int]) -> None:
        """Submits zeros, or old gradients, for what only other ranks have. ``flags``: of all ranks together."""
        for p, flag in flags.items():
            if flag and p not in self._pending and p not in self._group_of:
                _fill(p, flag)
                self._submit_one(p)
        for group in self._groups:
            if not self._is_pending(group) and any(flags[p] for p in group.members):
                for p in group.members:
                    if flags[p]:
                        _fill(p, flags[p])
                self._submit_group(group, {p: torch.zeros_like(p) for p in group.members if not flags[p]})

    def _is_pending(self, group: _Group) -> bool:
        return any(p in self._pending for p in group.members)

    def _finish(self) -> None:
        """Waits for all that is pending, also when one fails, then raises the first failure."""
        failure: Exception | None = None
        with torch.no_grad():
            while self._pending:
                # Taken out one by one: an interrupt leaves the rest, and so their memory, in place.
                p = next(iter(self._pending))
                try:
                    self._pending[p]()
                except Exception as error:
                    failure = failure or error
                del self._pending[p]
        if failure is not None:
            raise failure

    def _restart(self) -> None:
        self._left = dict.fromkeys(self._parameters, self.options.passes)
        for group in self._groups:
            group.waiting_for = len(group.members)
        if len(self._hooks) < len(self._parameters):
            for p in self._parameters:
                self._hook(p)  # it may have been frozen until now


def _fill(p: torch.Tensor, flag: int) -> None:
    """Gives ``p`` a gradient of zeros, of the kind that ``flag`` says, if it has none."""
    if p.grad is not None:
        return
    if flag == 1:
        p.grad = torch.zeros_like(p)
        return
    dims = flag - 1
    indices = torch.empty((dims, 0), dtype=torch.int64, device=p.device)
    values = torch.empty((0, *p.shape[dims:]), dtype=p.dtype, device=p.device)
    p.grad = torch.sparse_coo_tensor(indices, values, p.shape)
