"""What a distributed Keras optimizer does with a list of gradients, whichever the backend."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any

from horovod.common.contract.frames import warn_user
from horovod.common.ops import Average, Sum, check_compression, op_name
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.state import state
from horovod.common.util import split_list


@dataclass
class GradientReduction:
    """The arguments of ``DistributedOptimizer``, checked, and what they mean for gradients.

    ``adapter``: module of the backend (``backend.Adapter``). ``name``: prefix of the operations' names: gradients are
    named by their position, because the names of variables need not be the same on all ranks.
    """

    adapter: Any
    name: str
    compression: Any = None
    sparse_as_dense: bool = False
    op: int = Average
    predivide: float = 1.0
    groups: int | Sequence[Sequence[Any]] | None = None
    process_set: ProcessSet = global_process_set
    passes: int = 1
    average_passes: bool = False
    scale_local: bool = True
    local: set[Any] = field(default_factory=set)

    def __post_init__(self) -> None:
        if isinstance(self.op, bool) or self.op not in (Average, Sum):
            raise ValueError(f"op is {op_name(self.op)}; accepted are Average and Sum")
        self.op = int(self.op)  # NumPy's numbers are welcome; beyond here they are Python's
        if isinstance(self.predivide, bool) or not isinstance(self.predivide, Real) or not self.predivide > 0:
            raise ValueError(f"gradient_predivide_factor is {self.predivide!r}; accepted are numbers above 0")
        self.predivide = float(self.predivide)
        if self.predivide != 1.0 and self.op != Average:
            raise ValueError(
                f"gradient_predivide_factor is {self.predivide} with op={op_name(self.op)}; accepted with it is Average"
            )
        if isinstance(self.passes, bool) or not isinstance(self.passes, Integral) or self.passes < 1:
            raise ValueError(f"backward_passes_per_step is {self.passes!r}; accepted are integers from 1 on")
        self.passes = int(self.passes)
        if not isinstance(self.process_set, ProcessSet):
            raise ValueError(f"process_set is a {type(self.process_set).__name__}; accepted is a ProcessSet")
        _check_groups(self.groups)
        if isinstance(self.groups, Integral):
            self.groups = int(self.groups)
        elif self.groups is not None:
            self._check_repeats(self.groups)
        if self.compression is None:
            self.compression = self.adapter.Compression.none
        check_compression(self.compression)

    def __deepcopy__(self, memo: Any) -> "GradientReduction":
        """For a copy of the optimizer: of the same variables, for the same ranks."""
        return replace(self, local=set(self.local))

    def __reduce__(self) -> Any:
        """ValueError where it speaks of variables or of a process set, which another process does not know."""
        if self.local or isinstance(self.groups, list | tuple) or self.process_set is not global_process_set:
            raise ValueError(
                "a distributed optimizer with local variables, groups of variables or a process set of its own cannot "
                "be pickled; pickle the plain optimizer and make it distributed where it is loaded"
            )
        left_out = ("adapter", "process_set", "local")
        options = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in left_out}
        return _unpickled, (self.adapter.__name__, options)

    def _check_repeats(self, groups: Sequence[Sequence[Any]]) -> None:
        seen = set()
        for index, group in enumerate(groups):
            for variable in group:
                key = self.adapter.key(variable)
                if key in seen:
                    name = getattr(variable, "path", None) or getattr(variable, "name", variable)
                    raise ValueError(f"groups[{index}] has {name!r} for the second time; accepted is once")
                seen.add(key)

    def active(self) -> bool:
        """Is there anybody to reduce with? ValueError, naming init, before ``hvd.init()``."""
        job = state.require_job()
        return bool(self.process_set.included()) and (len(self.process_set.ranks or ()) > 1 or job.elastic)

    def add_local(self, variable: Any) -> None:
        """The gradient of this variable is not reduced from now on."""
        self.local.add(self.adapter.key(variable))

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients as the update is to see them. None stays None."""
        results = list(grads)
        if not self.active():
            return results
        shared = []
        for i, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
            if grad is None:
                continue
            if self.local and self.adapter.key(variable) in self.local:
                if self.scale_local:
                    results[i] = self.adapter.scale(grad, 1.0 / len(self.process_set.ranks or (0,)))
            else:
                shared.append(i)
        if not shared:
            return results
        chosen = [variables[i] for i in shared]
        more = {"variables": chosen} if getattr(self.adapter, "WANTS_VARIABLES", False) else {}
        reduced = self.adapter.reduce_gradients(
            [grads[i] for i in shared],
            [f"{self.name}.{i}" for i in shared],
            op=self.op,
            prescale=1.0 / self.predivide,
            # Average divides by the number of ranks anyway.
            postscale=float(self.predivide),
            compression=self.compression,
            sparse_as_dense=self.sparse_as_dense,
            groups=self._positions(chosen),
            process_set=self.process_set,
            **more,
        )
        for i, grad in zip(shared, reduced, strict=True):
            results[i] = grad
        return results

    def _positions(self, variables: Sequence[Any]) -> list[list[int]] | None:
        """``groups`` as positions in ``variables``."""
        if not self.groups:
            return None
        if isinstance(self.groups, int):
            return [list(part) for part in split_list(list(range(len(variables))), min(self.groups, len(variables)))]
        where = {self.adapter.key(variable): i for i, variable in enumerate(variables)}
        keys = [[self.adapter.key(variable) for variable in group] for group in self.groups]
        found = [[where[key] for key in group if key in where] for group in keys]
        return [group for group in found if group]


def _unpickled(adapter: str, options: dict[str, Any]) -> GradientReduction:
    return GradientReduction(adapter=importlib.import_module(adapter), **options)


def _check_groups(groups: Any) -> None:
    accepted = "accepted are None, an integer from 0 on, and a list of lists of variables"
    if groups is None:
        return
    if isinstance(groups, bool) or (isinstance(groups, Integral) and groups < 0):
        raise ValueError(f"groups is {groups!r}; {accepted}")
    if isinstance(groups, Integral):
        return
    if not isinstance(groups, list | tuple):
        raise ValueError(f"groups is a {type(groups).__name__}; {accepted}")
    for index, group in enumerate(groups):
        if not isinstance(group, list | tuple):
            raise ValueError(f"groups[{index}] is a {type(group).__name__}; {accepted}")
        for variable in group:
            if not hasattr(variable, "assign") and not hasattr(variable, "requires_grad"):
                raise ValueError(f"groups[{index}] contains a {type(variable).__name__}; {accepted}")


def groups_of(num_groups: Any, groups: Any) -> Any:
    """``groups`` with the deprecated ``num_groups`` in it. ValueError for a num_groups that is no number."""
    if not num_groups:
        return groups
    if isinstance(num_groups, bool) or not isinstance(num_groups, Integral) or num_groups < 0:
        raise ValueError(f"num_groups is {num_groups!r}; accepted are integers from 0 on")
    warn_user("the argument num_groups is deprecated, use groups", DeprecationWarning)
    return num_groups if groups is None else groups
