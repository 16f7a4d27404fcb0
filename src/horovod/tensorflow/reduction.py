"""Reduction of lists of gradients, for TensorFlow's tape and optimizers and for Keras.

Each gradient is reduced under the name ``<name>/<position>``, where the position is the gradient's index in the list.
Names of variables differ between ranks and are not used: Keras names the variables of a loaded model differently from
those of the same model built in place, and it numbers layers in the order in which a rank creates them. A second
reduction in the same function uses ``<name>_1``, and so on. The names do not depend on Python ids, scopes, or the
number of times a function was traced. If a function calls another, TensorFlow prefixes the inner names with the name of
the call.

In eager mode operations do not run concurrently, so all gradients of a dtype form one group.
"""

import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from horovod.common.compression import check_compression
from horovod.common.frontends import TENSORFLOW as frontend
from horovod.common.ops import Adasum, Average, Max, Sum, check_adasum_size, check_op
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop import gradients as rules
from horovod.common.training_loop.steps import marks
from horovod.common.training_loop.weights import check_weighted_op, weighted_means
from horovod.tensorflow.collectives import allreduce, as_weight, grouped_allreduce, set_size
from horovod.tensorflow.compression import Compression

Reduce = Callable[..., list[Any]]
"""Function (gradients, their variables) -> reduced gradients. A gradient is a Tensor, IndexedSlices or None."""


@dataclass(frozen=True)
class _Options:
    name: str
    device_dense: str
    device_sparse: str
    compression: Any
    sparse_as_dense: bool
    op: int
    predivide: float
    process_set: ProcessSet


def make_allreduce_grads(
    name: str,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    weight: Any = None,
    on_total: Callable[[Any], None] | None = None,
) -> Reduce:
    """Return a function ``(gradients, variables) -> reduced gradients`` for eager mode, tf.function and sessions.

    Gradients, variables and results are lists of the same length and order. A gradient that is None stays None. The
    function returns all gradients unchanged if this rank is not in ``process_set``, or if it is the only member and the
    job is not elastic. All ranks must pass gradients at the same positions.

    Args:
        name: Prefix of the operations' names, the same on all ranks.
        device_dense: TensorFlow device for dense gradients.
        device_sparse: TensorFlow device for IndexedSlices.
        compression: Compressor.
        sparse_as_dense: True to convert IndexedSlices to dense tensors.
        op: Reduction.
        gradient_predivide_factor: With Average over n ranks and a factor f, gradients are divided by f before and by
            n/f after the summation. Not applied to IndexedSlices.
        groups: Number of groups, or lists of variables. Gradients of a group are reduced together. Other gradients are
            reduced separately.
        process_set: Ranks that take part.
        weight: Weight of this rank's gradients, as a number, a scalar tensor, or a function that returns one and is
            called in each reduction. None to give all ranks the same weight.
        on_total: Function that each reduction with weights calls with the total weight.

    Raises:
        ValueError: If an argument is invalid. The message names it.
        NotImplementedError: If ``op`` is Adasum and the number of ranks is not a power of two.
    """
    op = check_op(op)
    check_weighted_op(op, weight)
    check_compression(compression)
    marks.find()
    predivide = rules.check_predivide(gradient_predivide_factor, op)
    groups = rules.check_groups(groups, is_variable, key_of, lambda variable: repr(name_of(variable)))
    options = _Options(
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        predivide,
        process_set,
    )

    def reduce(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        gradients, variables = list(gradients), list(variables)
        if len(gradients) != len(variables):
            raise ValueError(f"{name}: {len(gradients)} gradients for {len(variables)} variables")
        if not reduces(process_set):
            return gradients
        if op == Adasum:
            check_adasum_size(name, len(process_set.ranks or ()))
        if op != Max and any(rules.overwritten(variable) for variable in variables):
            return _with_largest(reduce, f"{name}_largest", process_set, gradients, variables)
        if sparse_as_dense:
            gradients = [dense(gradient) for gradient in gradients]
        # Reset TensorFlow's name scope, because operation names must not include the scope.
        with tf.compat.v1.name_scope(None):
            if weight is not None:
                count = as_weight(weight() if callable(weight) else weight)
                results, total = _reduce_weighted(gradients, variables, groups, count, options)
                if on_total is not None:
                    on_total(total)
                return results
            return _reduce(gradients, _groups(gradients, variables, groups), options)

    return reduce


def reduces(process_set: ProcessSet = global_process_set) -> bool:
    """Return True if this rank is in the process set and the set includes other ranks.

    Raises:
        ValueError: If Horovod is not initialized.
    """
    return rules.anybody_else(process_set, frontend.require_job())


def dense(gradient: Any) -> Any:
    """Convert IndexedSlices to a dense tensor; return anything else unchanged."""
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


# -- variables --------------------------------------------------------------------------------------------------------


def is_variable(value: Any) -> bool:
    """Return True if ``value`` is a TensorFlow or Keras variable."""
    return isinstance(_plain(value), tf.Variable) or hasattr(_plain(value), "handle")


def key_of(variable: Any) -> Any:
    """Return a hashable key shared by a Keras variable and the TensorFlow variable that it wraps."""
    plain = _plain(variable)
    return plain.ref() if hasattr(plain, "ref") else id(plain)


def _plain(variable: Any) -> Any:
    inner = None if isinstance(variable, tf.Variable) else getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable


def name_of(variable: Any) -> str:
    """Return the variable's name for use in messages, such as ``dense/kernel``."""
    name = getattr(variable, "path", None) or getattr(variable, "name", None) or type(variable).__name__
    return str(name).split(":")[0]


def on_the_wire(name: str) -> str:
    """Remove the numbers from a Keras name, because they can differ between ranks.

    For example, ``dense_2/kernel`` becomes ``dense/kernel``. Keras numbers layers in the order in which a rank creates
    them.

    Returns:
        The name without the numbers.
    """
    parts = re.sub(r"[^\w./-]", "_", name).split("/")
    return "/".join(re.sub(r"(?<=.)_\d+$", "", part) for part in parts)


class LocalVariables:
    """Set of local variables, whose gradients are not reduced.

    With ``scale``, their gradients are divided by the number of ranks, as if the other ranks had contributed zeros to
    an average.
    """

    def __init__(self, scale: bool, process_set: ProcessSet) -> None:
        self._scale = scale
        self._process_set = process_set
        self._keys: set[Any] = set()

    def add(self, variable: Any) -> None:
        """Add a variable whose gradient is not reduced.

        Raises:
            ValueError: If ``variable`` is not a variable.
        """
        if not is_variable(variable):
            raise ValueError(f"a local variable must be a variable, got a {type(variable).__name__}")
        self._keys.add(key_of(variable))

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __contains__(self, variable: Any) -> bool:
        return key_of(variable) in self._keys

    def reduce(self, reduce: Reduce, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduce the gradients of all variables that are not local. Return all gradients in their original order."""
        if not self._keys:
            return reduce(gradients, variables)
        shared = [i for i, variable in enumerate(variables) if variable not in self]
        results = [self.scaled(g) if v in self else None for g, v in zip(gradients, variables, strict=True)]
        reduced = reduce([gradients[i] for i in shared], [variables[i] for i in shared])
        for i, gradient in zip(shared, reduced, strict=True):
            results[i] = gradient
        return results

    def scaled(self, gradient: Any) -> Any:
        """Return a local variable's gradient, divided by the number of ranks if requested."""
        if gradient is None or not self._scale or not reduces(self._process_set):
            return gradient
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(self.scaled(gradient.values), gradient.indices, gradient.dense_shape)
        return gradient / tf.cast(set_size(self._process_set, "scale_local_gradients"), gradient.dtype)


def _with_largest(
    reduce: Reduce, name: str, process_set: ProcessSet, gradients: Sequence[Any], variables: Sequence[Any]
) -> list[Any]:
    """Reduce gradients with ``reduce``, except for variables that the update overwrites with the gradient.

    For these variables (``overwrite_with_gradient`` in Keras), use the maximum over all ranks instead.

    Returns:
        The reduced gradients, in the same order.
    """
    largest = make_allreduce_grads(name, op=Max, process_set=process_set)
    results = list(gradients)
    for how, wanted in ((reduce, False), (largest, True)):
        chosen = [i for i, variable in enumerate(variables) if rules.overwritten(variable) == wanted]
        reduced = how([gradients[i] for i in chosen], [variables[i] for i in chosen])
        for i, gradient in zip(chosen, reduced, strict=True):
            results[i] = gradient
    return results


# -- the reduction ----------------------------------------------------------------------------------------------------


def _reduce(
    gradients: list[Any],
    groups: Iterable[tuple[str | None, list[int]]],
    options: _Options,
) -> list[Any]:
    scope = unused(options.name)
    results = list(gradients)
    for group, members in groups:
        if group is None:
            i = members[0]
            results[i] = _reduce_one(gradients[i], f"{scope}/{i}", options)
        else:
            outputs = _reduce_group([gradients[i] for i in members], f"{scope}/{group}", options)
            for i, output in zip(members, outputs, strict=True):
                results[i] = output
    return results


def _reduce_weighted(
    gradients: list[Any], variables: list[Any], groups: Any, weight: tf.Tensor, options: _Options
) -> tuple[list[Any], Any]:
    """Return the weighted means of the gradients over all ranks, and the total weight.

    The weight is sent with the gradients, as the last entry of the list. If gradients are sent in less than 32 bits, a
    separate operation sums the weights first.
    """
    present = [i for i, gradient in enumerate(gradients) if gradient is not None]
    dtypes = [gradients[i].dtype for i in present]
    widest = tf.float64 if tf.float64 in dtypes else tf.float32
    results = list(gradients)

    def add(values: Sequence[Any], options: _Options) -> list[Any]:
        """Sum ``values`` over the ranks.

        ``values`` contains the values of each gradient that is not None, and optionally the weight as the last element.

        Returns:
            The sums, in the same order.
        """
        given = [*gradients, *values[len(present) :]]
        for i, value in zip(present, values, strict=False):
            given[i] = _with_values(gradients[i], value)
        variables_of_given = [*variables, *given[len(gradients) :]]
        sums = _reduce(given, _groups(given, variables_of_given, groups), options)
        results[:] = sums[: len(gradients)]
        return [*(_values(sums[i]) for i in present), *sums[len(gradients) :]]

    exact = replace(options, op=Sum, predivide=1.0, compression=Compression.none)

    def sum_all(values: Sequence[Any]) -> list[Any]:
        return [_reduce_one(values[0], unused(f"{options.name}/weight"), exact)] if late else add(values, exact)

    def sum_shares(shares: Sequence[Any]) -> list[Any]:
        return add(
            [tf.cast(s, d) for s, d in zip(shares, dtypes, strict=True)], replace(exact, compression=compression)
        )

    compression = options.compression
    late = compression is not Compression.none or any(dtype.size < 4 for dtype in dtypes)
    wide = [
        tf.cast(_values(gradients[i]), tf.float64 if dtype == tf.float64 else tf.float32)
        for i, dtype in zip(present, dtypes, strict=True)
    ]
    means, total = weighted_means(tf, tf.cast, wide, tf.cast(weight, widest), sum_all, sum_shares if late else None)
    for i, mean, dtype in zip(present, means, dtypes, strict=True):
        results[i] = _with_values(results[i], tf.cast(mean, dtype))
    return results, total


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _with_values(gradient: Any, values: Any) -> Any:
    """Wrap ``values`` in an IndexedSlices if ``gradient`` is an IndexedSlices. Otherwise, return them unchanged."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return values


def _groups(gradients: list[Any], variables: list[Any], groups: Any) -> list[tuple[str | None, list[int]]]:
    """Return groups of gradients as (name, positions), and single gradients as (None, [position]).

    The gradients of a group have the same dtype, and all are dense or all are IndexedSlices. Every group has a name, by
    which the engine detects ranks that assign gradients to groups differently.
    """
    present = [i for i, gradient in enumerate(gradients) if gradient is not None]
    if tf.executing_eagerly() and not groups:
        groups = 1
    if not groups:
        return [(None, [i]) for i in present]
    alone: list[int] = []
    if isinstance(groups, int):
        parts = rules.parts(present, groups)
    else:
        where = {key_of(variables[i]): i for i in present}
        parts = [[where.pop(key_of(v)) for v in group if key_of(v) in where] for group in groups]
        alone = list(where.values())
    named: list[tuple[str | None, list[int]]] = []
    for number, part in enumerate(parts):
        kinds = _by_kind(part, gradients)
        named += [(f"group{number}.{kind}" if kind else f"group{number}", same) for kind, same in enumerate(kinds)]
    return named + [(None, [i]) for i in alone]


def _by_kind(members: list[int], gradients: list[Any]) -> list[list[int]]:
    parts: dict[Any, list[int]] = {}
    for i in members:
        kind = (gradients[i].dtype, isinstance(gradients[i], tf.IndexedSlices))
        parts.setdefault(kind, []).append(i)
    return list(parts.values())


def _scale(gradient: Any, options: _Options) -> dict[str, float]:
    if options.predivide == 1.0 or isinstance(gradient, tf.IndexedSlices):
        return {}
    prescale, postscale = rules.scales(options.predivide)
    return {"prescale_factor": prescale, "postscale_factor": postscale}


def _reduce_one(gradient: Any, name: str, options: _Options) -> Any:
    return allreduce(
        gradient,
        device_dense=options.device_dense,
        device_sparse=options.device_sparse,
        compression=options.compression,
        op=options.op,
        name=name,
        process_set=options.process_set,
        **_scale(gradient, options),
    )


def _reduce_group(gradients: list[Any], name: str, options: _Options) -> list[Any]:
    return grouped_allreduce(
        gradients,
        device_dense=options.device_dense,
        device_sparse=options.device_sparse,
        compression=options.compression,
        op=options.op,
        process_set=options.process_set,
        name=name,
        **_scale(gradients[0], options),
    )


_uses: "weakref.WeakKeyDictionary[Any, Counter[str]]" = weakref.WeakKeyDictionary()


def unused(name: str) -> str:
    """Return an operation name that the current function or session graph has not used yet.

    A number is appended if necessary. Operations of a function can run concurrently, so they need different names.
    """
    if tf.executing_eagerly():
        return name
    uses = _uses.setdefault(_whole_function(), Counter())
    uses[name] += 1
    return name if uses[name] == 1 else f"{name}_{uses[name] - 1}"


def _whole_function() -> Any:
    """Return the graph of the innermost tf.function or session.

    Branches of tf.cond and loop bodies belong to the function that contains them. A tf.function that calls another one
    is separate, because ranks can trace it a different number of times.
    """
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "is_control_flow_graph", False):
        graph = graph.outer_graph
    return graph
