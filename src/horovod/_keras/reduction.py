"""Reduction of gradients for distributed Keras optimizers on any backend."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from types import SimpleNamespace
from typing import Any

from horovod.common.compression import check_compression
from horovod.common.elastic import own
from horovod.common.frontends import state
from horovod.common.ops import Average, Max, Sum, op_name
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.gradients import (
    anybody_else,
    check_groups,
    check_passes,
    check_predivide,
    overwritten,
    parts,
    scales,
)
from horovod.common.training_loop.steps import marks
from horovod.common.training_loop.weights import check_weight, check_weighted_op, weighted_means


@dataclass
class GradientReduction:
    """Validated settings of a distributed optimizer, and the gradient reduction that uses them.

    ``adapter`` is the backend's module (``backend.Adapter``). ``name`` is the name prefix of the operations. Gradients
    are named by position, because names of variables can differ between ranks.
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
    weight: Any = None
    batch: Any = field(default=None, compare=False)
    """Number of samples of the batch of ``fit`` whose gradients are reduced next; with weight="batch"."""
    total: Any = field(default=None, compare=False)
    """Total weight of the last reduction, or None if it had no weights."""

    def __post_init__(self) -> None:
        if isinstance(self.op, bool) or self.op not in (Average, Sum):
            raise ValueError(f"op must be Average or Sum, got {op_name(self.op)}")
        self.op = int(self.op)  # Convert NumPy integers to Python integers.
        self.predivide = check_predivide(self.predivide, self.op)
        check_weighted_op(self.op, self.weight)
        if isinstance(self.weight, str) and self.weight != "batch":
            raise ValueError(f'weight must be a number, a tensor, a function or "batch", got {self.weight!r}')
        self.passes = check_passes(self.passes)
        if not isinstance(self.process_set, ProcessSet):
            raise ValueError(f"process_set must be a ProcessSet, got {self.process_set!r}")
        self.groups = check_groups(self.groups, _is_variable, self.adapter.key, _shown)
        if self.compression is None:
            self.compression = self.adapter.Compression.none
        check_compression(self.compression)
        marks.find()

    def __deepcopy__(self, memo: Any) -> "GradientReduction":
        """Return a copy of the settings for another optimizer that has the same variables and ranks."""
        return replace(self, local=set(self.local))

    def __reduce__(self) -> Any:
        """Pickle the settings.

        Raises:
            ValueError: If the settings refer to variables or to a process set, which do not exist in another process.
        """
        if self.local or isinstance(self.groups, list | tuple) or self.process_set is not global_process_set:
            raise ValueError(
                "a distributed optimizer with local variables, groups of variables or a process set other than "
                "global_process_set cannot be pickled; pickle the plain optimizer and make it distributed after loading"
            )
        left_out = ("adapter", "process_set", "local", "batch", "total")
        options = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in left_out}
        return _unpickled, (self.adapter.__name__, options)

    def active(self) -> bool:
        """Return True if the process set includes other ranks.

        Raises:
            ValueError: If Horovod is not initialized.
        """
        return anybody_else(self.process_set, state.require_job())

    def add_local(self, variable: Any) -> None:
        """Mark a variable as local, so that its gradient is not reduced."""
        self.local.add(self.adapter.key(variable))

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduce gradients, and return them for use in the update.

        A gradient that is None stays None. Some variables are not updated but replaced by their gradient. For these,
        the result is the maximum over all ranks.
        """
        results = list(grads)
        if not self.active():
            return results
        shared, largest = [], []
        for i, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
            if grad is None:
                continue
            is_value = overwritten(variable)
            if self.local and self.adapter.key(variable) in self.local:
                if self.scale_local and not is_value:
                    results[i] = self.adapter.divided_by_size(grad, self.process_set)
            elif is_value:
                largest.append(i)
            else:
                shared.append(i)
        if shared:
            prescale, postscale = scales(self.predivide)
            reduced = (self._reduced if self.weight is None else self._weighted)(
                [grads[i] for i in shared],
                [f"{self.name}.{i}" for i in shared],
                [variables[i] for i in shared],
                op=self.op,
                prescale=prescale,
                postscale=postscale,
                compression=self.compression,
                sparse_as_dense=self.sparse_as_dense,
                groups=self._positions([variables[i] for i in shared]),
            )
            for i, grad in zip(shared, reduced, strict=True):
                results[i] = grad
        if largest:
            reduced = self._reduced(
                [grads[i] for i in largest],
                [f"{self.name}_largest.{i}" for i in largest],
                [variables[i] for i in largest],
                op=Max,
                prescale=1.0,
                postscale=1.0,
                compression=self.adapter.Compression.none,
                sparse_as_dense=False,
                groups=None,
            )
            for i, grad in zip(largest, reduced, strict=True):
                results[i] = grad
        return results

    def _reduced(self, grads: list[Any], names: list[str], variables: list[Any], **how: Any) -> list[Any]:
        more = {"variables": variables} if getattr(self.adapter, "WANTS_VARIABLES", False) else {}
        reduced: list[Any] = self.adapter.reduce_gradients(grads, names, process_set=self.process_set, **how, **more)
        return reduced

    def _weighted(self, grads: list[Any], names: list[str], variables: list[Any], **how: Any) -> list[Any]:
        """Return the weighted means of the gradients over all ranks, as dense tensors."""
        xp, cast, dense = self.adapter.weighing()
        dtypes = [grad.dtype for grad in grads]
        wide = [cast(dense(g), xp.float64 if "float64" in str(g.dtype) else xp.float32) for g in grads]
        count = xp.reshape(cast(self.adapter.convert(self._number()), wide[0].dtype), ())
        last = int(names[-1].rpartition(".")[2])
        exact = {**how, "op": Sum, "prescale": 1.0, "postscale": 1.0, "compression": self.adapter.Compression.none}

        def sum_all(values: Sequence[Any]) -> list[Any]:
            own = names if len(values) > 1 else []
            given = [*variables[: len(own)], values[-1]]
            groups = how["groups"] if own else None
            return self._reduced(list(values), [*own, f"{self.name}.{last + 1}"], given, **{**exact, "groups": groups})

        def sum_shares(shares: Sequence[Any]) -> list[Any]:
            sent = [cast(share, dtype) for share, dtype in zip(shares, dtypes, strict=True)]
            return self._reduced(sent, names, variables, **{**exact, "compression": how["compression"]})

        late = self.compression is not self.adapter.Compression.none or any("16" in str(dtype) for dtype in dtypes)
        means, self.total = weighted_means(xp, cast, wide, count, sum_all, sum_shares if late else None)
        return [cast(mean, dtype) for mean, dtype in zip(means, dtypes, strict=True)]

    def take_total(self) -> Any:
        """Return the total weight of the last reduction, and clear it.

        If the total is 0, the step must change nothing.
        """
        total, self.total = self.total, None
        return total

    def _number(self) -> Any:
        """Return the weight of this rank's batch as a number or a tensor."""
        if self.weight != "batch":
            number = self.weight() if callable(self.weight) else self.weight
            return check_weight(number) if isinstance(number, int | float) else number
        number, self.batch = self.batch, None
        if number is None:
            raise ValueError('weight must be a number, a tensor or a function outside of fit, got "batch"')
        return number

    def _positions(self, variables: Sequence[Any]) -> list[list[int]] | None:
        """Convert groups of variables to groups of positions in ``variables``."""
        if not self.groups:
            return None
        if isinstance(self.groups, int):
            return parts(range(len(variables)), self.groups)
        where = {self.adapter.key(variable): i for i, variable in enumerate(variables)}
        keys = [[self.adapter.key(variable) for variable in group] for group in self.groups]
        found = [[where[key] for key in group if key in where] for group in keys]
        return [group for group in found if group]


def _unpickled(adapter: str, options: dict[str, Any]) -> GradientReduction:
    return GradientReduction(adapter=importlib.import_module(adapter), **options)


def _is_variable(value: Any) -> bool:
    return hasattr(value, "assign") or hasattr(value, "requires_grad")


def _shown(variable: Any) -> str:
    return repr(getattr(variable, "path", None) or getattr(variable, "name", variable))


# -- accumulation over several backward passes -----------------------------------------------------------------------


def keras3_tools(keras: Any) -> SimpleNamespace:
    """Return the functions of Keras 3 that LocalAggregation needs, for any backend except JAX.

    With JAX, gradients cannot be accumulated in variables.
    """

    def variable(shape: Any, dtype: Any, name: str) -> Any:
        zeros = keras.initializers.Zeros()
        return keras.Variable(zeros, shape=shape, dtype=dtype, trainable=False, name=name)

    return SimpleNamespace(
        variable=variable,
        cond=keras.ops.cond,
        tensor=keras.ops.convert_to_tensor,
        zeros_like=keras.ops.zeros_like,
        maximum=keras.ops.maximum,
    )


class LocalAggregation:
    """Accumulator that sums the gradients of ``passes`` calls for each update.

    The sums are not variables of the optimizer, so saved models are the same as with the original optimizer.
    """

    def __init__(self, tools: Any, adapter: Any, passes: int, average: bool, sparse_as_dense: bool) -> None:
        """Create an empty accumulator.

        Args:
            tools: Functions as returned by ``keras3_tools``.
            adapter: Adapter of the backend.
            passes: Number of calls per update.
            average: True to divide the sums by ``passes``.
            sparse_as_dense: True to convert sparse gradients to dense ones, False to reject them.
        """
        self._tools = tools
        self._adapter = adapter
        self._passes = passes
        self._average = average
        self._sparse_as_dense = sparse_as_dense
        self._sums: dict[Any, Any] = {}
        self.counter = tools.variable((), "int32", "backward_passes")
        own.register_accumulator(self)

    def pending(self) -> bool:
        """Return True if there are accumulated gradients that no update has used yet."""
        return int(self._tools.tensor(self.counter)) != 0

    def drop(self) -> None:
        """Discard the sums, and start accumulating for a new update."""
        for total in self._sums.values():
            total.assign(self._tools.zeros_like(self._tools.tensor(total)))
        self.counter.assign(0)

    def step(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        update: Callable[[list[Any]], Any],
        skip: Callable[[], Any],
    ) -> None:
        """Add gradients to the sums. If an update is due afterwards, call ``update(sums)``. Otherwise, call ``skip()``.

        A gradient that is None leaves its sum unchanged. The sum is None if no call had a gradient for the variable.

        Raises:
            ValueError: If a gradient is sparse and ``sparse_as_dense`` is False.
        """
        tools = self._tools
        pairs = list(zip(grads, variables, strict=True))
        dense = [self._dense(grad, variable) for grad, variable in pairs]
        for grad, variable in zip(dense, variables, strict=True):
            if grad is None:
                continue
            total = self._sum_of(variable)
            if overwritten(variable):
                total.assign(tools.maximum(tools.tensor(total), grad))
            else:
                total.assign_add(grad)
        sums = [self._sums.get(self._adapter.key(variable)) for variable in variables]
        self.counter.assign_add(1)

        def flush() -> None:
            update([self._complete(total, variable) for total, variable in zip(sums, variables, strict=True)])
            for total in sums:
                if total is not None:
                    total.assign(tools.zeros_like(tools.tensor(total)))
            self.counter.assign(0)

        def keep() -> None:
            skip()

        tools.cond(tools.tensor(self.counter) == self._passes, flush, keep)

    def _complete(self, total: Any, variable: Any) -> Any:
        if total is None:
            return None
        factor = 1.0 / self._passes if self._average and not overwritten(variable) else 1.0
        return self._adapter.scale(self._tools.tensor(total), factor)

    def _dense(self, grad: Any, variable: Any) -> Any:
        is_sparse = hasattr(grad, "dense_shape") or getattr(grad, "is_sparse", False) is True
        if not is_sparse:
            return grad
        if not self._sparse_as_dense:
            name = getattr(variable, "path", None) or getattr(variable, "name", "?")
            raise ValueError(
                f"backward_passes_per_step={self._passes}: the gradient of {name!r} must be dense; set "
                "sparse_as_dense=True"
            )
        return grad.to_dense() if hasattr(grad, "to_dense") else self._tools.tensor(grad)

    def _sum_of(self, variable: Any) -> Any:
        key = self._adapter.key(variable)
        if key not in self._sums:
            self._sums[key] = self._tools.variable(variable.shape, variable.dtype, "gradient_sum")
        return self._sums[key]
