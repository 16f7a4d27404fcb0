"""Distributed optimizers for Keras 3: subclasses that reduce gradients before applying them.

Every update, whether by ``fit``, ``train_on_batch``, a custom ``train_step`` or ``apply_gradients``, ends in ``apply``
(TensorFlow, PyTorch, eager code) or ``stateless_apply`` (JAX). So only these two methods are overridden, and no method
of the model. The reduction is part of what the backend compiles or runs eagerly, once per call.

With Keras' gradient accumulation (``gradient_accumulation_steps``) on TensorFlow and PyTorch, gradients are reduced
only in the step that makes the update. That step clips the accumulated gradients with ``_clip_gradients``, which
reduces them first. On JAX, with loss scaling, and for variables that their gradients overwrite, the gradients of every
step are reduced instead. The result is the same. With weights, every step must be reduced, because each of them has its
own total weight.

With loss scaling (mixed_float16), the gradients decide whether an update takes place, so all ranks must look at the
reduced gradients. Otherwise, if only one rank had an infinite gradient, it would skip the reduction, and the others
would wait for it forever. So the ``LossScaleOptimizer`` always does the reduction. When Keras wraps a distributed
optimizer in one, the wrapper reduces and the wrapped optimizer does not.
"""

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from horovod._keras import checks
from horovod._keras.alike import differing
from horovod._keras.reduction import GradientReduction, LocalAggregation, keras3_tools
from horovod.common.in_sync import mark_own
from horovod.common.training_loop.steps import marks


class DistributedMixin:
    """Methods of the wrapped optimizer that a distributed optimizer overrides."""

    _HAS_AGGREGATE_GRAD = True
    _hvd: "Control | None" = None

    @property
    def _agg_helper(self) -> LocalAggregation | None:
        return None if self._hvd is None else self._hvd.aggregation

    @property
    def _optimizer(self) -> Any:
        return self if self._hvd is None else self._hvd.original

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Support pickling and copying by using the data that Keras itself saves."""
        kinds = type(self).__mro__
        base = kinds[kinds.index(DistributedMixin) + 1]
        _, (file,) = super().__reduce__()  # type: ignore[misc]
        return _copied, (base, file, None if self._hvd is None else self._hvd.reduction)

    def register_local_var(self, var: Any) -> None:
        """Mark a variable as local, so that its gradient is not reduced.

        The gradient is divided by the number of ranks if ``scale_local_gradients`` is True.

        Args:
            var (Variable): Trainable variable.
        """
        if self._hvd is not None:
            self._hvd.reduction.add_local(var)

    def build(self, variables: Any) -> None:
        """Build the wrapped optimizer, and mark its accumulators of local gradients as local."""
        super().build(variables)  # type: ignore[misc]
        if self._hvd is not None:
            self._hvd.mark_accumulators(self)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Reduce the gradients over the ranks, then apply them as the wrapped optimizer does."""
        control = self._hvd
        plain = super().apply  # type: ignore[misc]
        variables = None if trainable_variables is None else list(trainable_variables)
        if control is None or control.reduced or (not self.built and variables is None):  # type: ignore[attr-defined]
            plain(grads, variables)
        else:
            control.apply(self, plain, list(grads), variables)

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """Reduce the gradients over the ranks, then apply them as the wrapped optimizer does."""
        control = self._hvd
        plain = super().stateless_apply  # type: ignore[misc]
        if control is None or control.reduced or not self.built:  # type: ignore[attr-defined]
            return plain(optimizer_variables, grads, trainable_variables)
        grads = control.reduction.reduce(list(grads), self._trainable_variables)  # type: ignore[attr-defined]
        total = control.reduction.take_total()
        with control.no_more():
            new = plain(optimizer_variables, grads, trainable_variables)
        if total is None:
            return new
        old = (trainable_variables, optimizer_variables)
        return tuple(
            [control.ops.where(total > 0, *pair) for pair in zip(*both, strict=True)]
            for both in zip(new, old, strict=True)
        )

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> Any:
        if self._hvd is not None:
            self._hvd.variables = trainable_variables
        return super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self, grads: Any) -> Any:
        if self._hvd is not None and self._hvd.deferred(self):
            grads = self._hvd.reduction.reduce(grads, self._hvd.variables)
        return super()._clip_gradients(grads)  # type: ignore[misc]


class Control:
    """State that makes a Keras optimizer distributed."""

    def __init__(
        self,
        keras: Any,
        reduction: GradientReduction,
        original: Any,
        accumulates_at_the_end: bool,
        inner: "Control | None",
    ) -> None:
        """Create the state that makes a Keras optimizer distributed.

        ``original`` is the optimizer that the user passed. If it is a loss scaling optimizer around a distributed
        optimizer, ``inner`` is the state of that distributed optimizer; otherwise None.
        """
        self.reduction = reduction
        self.ops = keras.ops
        self.original = original
        self._inner = inner
        self.aggregation: LocalAggregation | None = None
        if reduction.passes > 1:
            self.aggregation = LocalAggregation(
                keras3_tools(keras),
                reduction.adapter,
                reduction.passes,
                reduction.average_passes,
                reduction.sparse_as_dense,
            )
        # True while an optimizer method is called with gradients that have already been reduced.
        self.reduced = False
        self.variables: Sequence[Any] = ()
        self._accumulates_at_the_end = accumulates_at_the_end

    @contextlib.contextmanager
    def no_more(self) -> Iterator[None]:
        """Return a context manager in which this optimizer and its inner optimizer do not reduce gradients."""
        controls = [control for control in (self, self._inner) if control is not None]
        before = [control.reduced for control in controls]
        for control in controls:
            control.reduced = True
        try:
            yield
        finally:
            for control, value in zip(controls, before, strict=True):
                control.reduced = value

    def deferred(self, optimizer: Any) -> bool:
        """Return True if Keras accumulates the gradients, so that they are reduced once per update."""
        return not self.reduced and self._defers(optimizer)

    def mark_accumulators(self, optimizer: Any) -> None:
        """Mark the accumulators for gradients of local variables as local too."""
        if self._defers(optimizer):
            mark_own(optimizer._accumulated_gradients)

    def _defers(self, optimizer: Any) -> bool:
        return bool(
            self._accumulates_at_the_end
            and self.reduction.weight is None
            and getattr(optimizer, "gradient_accumulation_steps", None)
            and not any(getattr(v, "overwrite_with_gradient", False) for v in optimizer._trainable_variables)
        )

    def apply(self, optimizer: Any, plain: Any, grads: list[Any], variables: list[Any] | None) -> None:
        """Reduce gradients and apply them."""
        check = getattr(self.reduction.adapter, "check_traceable", None)
        if check is not None and grads and self.reduction.active():
            check()
        if not optimizer.built and grads:
            optimizer.build(variables)
        params = optimizer._trainable_variables if variables is None else variables
        if len(params) != len(grads) or not grads or all(grad is None for grad in grads) or self.deferred(optimizer):
            # The wrapped optimizer reports missing or mismatched gradients, and handles passes that only accumulate
            # gradients.
            plain(grads, variables)
            self._stepped()
            return

        every_pass = self.aggregation is not None and self.reduction.weight is not None
        if every_pass:
            grads = self.reduction.reduce(grads, params)

        def update(final: list[Any]) -> None:
            final = final if every_pass else self.reduction.reduce(final, params)
            total = self.reduction.take_total()

            def step() -> None:
                with self.no_more():
                    plain(final, variables)

            if total is None or every_pass:
                step()
            else:
                self.ops.cond(total > 0, step, lambda: None)
            self._stepped()

        if self.aggregation is None:
            update(grads)
            return

        def skip() -> None:
            inner = getattr(optimizer, "inner_optimizer", optimizer)
            inner._iterations.assign_add(1)

        self.aggregation.step(grads, params, update, skip)

    def _stepped(self) -> None:
        """Record an update of the optimizer for monitoring.

        With PyTorch, this is called in every update. With other backends, it may be called only while tracing.
        """
        if getattr(self.reduction.adapter, "STEPS_SEEN", False):
            marks.optimizer(self)


def is_distributed(optimizer: Any) -> bool:
    """Return True if the optimizer is distributed."""
    return isinstance(optimizer, DistributedMixin) and optimizer._hvd is not None


@functools.cache
def distributed_class(base: type) -> type:
    """Return the distributed subclass of ``base``, registered in Keras under the same name and module.

    Files saved with the subclass refer to ``base``, so they load in a process without Horovod.
    """
    namespace = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    made = type(base.__name__, (DistributedMixin, base), namespace)
    _register_alike(made, base)
    return made


def _register_alike(wrapped: type, base: type) -> None:
    """Register a distributed class with Keras under the names registered for its original class ``base``.

    Without this, a saved file would contain only the module path of ``base``, and not the name under which the user has
    registered the class.
    """
    try:
        from keras.src.api_export import REGISTERED_OBJS_TO_NAMES as exported
        from keras.src.saving.object_registration import GLOBAL_CUSTOM_NAMES as registered
    except ImportError:
        return
    for names in (exported, registered):
        if base in names:
            names[wrapped] = names[base]


def distribute(keras: Any, optimizer: Any, reduction: GradientReduction, rebuild: bool = True) -> Any:
    """Return a distributed optimizer equivalent to ``optimizer``.

    With ``rebuild``, an optimizer without state is rebuilt from its config. Without ``rebuild``, or if the config is
    incomplete, ``optimizer`` itself becomes distributed. An optimizer that is already distributed gets the new
    ``reduction``.

    Raises:
        ValueError: If the backend is JAX and the reduction has several backward passes per step.
    """
    _prepare(keras, reduction.adapter)
    backend = keras.config.backend()
    if reduction.passes > 1 and backend == "jax":
        raise ValueError(
            f"backward_passes_per_step must be 1 with the JAX backend, got {reduction.passes}; use the optimizer's "
            "gradient_accumulation_steps instead"
        )
    if isinstance(optimizer, DistributedMixin):
        wrapped = optimizer
    else:
        wrapped = (_from_config(keras, optimizer) if rebuild and not optimizer.built else None) or _in_place(optimizer)
    inner = getattr(wrapped, "inner_optimizer", None)
    at_the_end = backend in ("tensorflow", "torch") and inner is None and _has_standard_accumulation(type(wrapped))
    # Do not use setattr, because Keras would track this object and save it with the optimizer.
    inner_control = inner._hvd if is_distributed(inner) else None
    control = wrapped.__dict__["_hvd"] = Control(keras, reduction, optimizer, at_the_end, inner_control)
    if wrapped.built:
        control.mark_accumulators(wrapped)
    return wrapped


def _copied(base: Any, file: Any, reduction: GradientReduction | None) -> Any:
    """Recreate an optimizer that was copied or pickled.

    ``file`` is the data that Keras saves for the plain optimizer.
    """
    plain = base._unpickle_model(file)
    if reduction is None:
        return plain
    import keras

    return distribute(keras, plain, reduction, rebuild=False)


def _in_place(optimizer: Any) -> Any:
    optimizer.__class__ = distributed_class(type(optimizer))
    return optimizer


def _from_config(keras: Any, optimizer: Any) -> Any:
    """Rebuild an optimizer from its config. Return None if the config is incomplete."""
    try:
        made = distributed_class(type(optimizer)).from_config(optimizer.get_config())  # type: ignore[attr-defined]
    except Exception:  # Some user-defined optimizers and schedules do not support serialization.
        return None
    return None if differing(keras, optimizer, made) else made


def _has_standard_accumulation(kind: type) -> bool:
    """Return True if the class accumulates gradients with Keras' own methods and does not override them."""
    base = next((c for c in kind.__mro__ if c.__name__ == "BaseOptimizer" and c.__module__.startswith("keras.")), None)
    if base is None:
        return False
    owners = [
        next((c for c in kind.__mro__ if c is not DistributedMixin and name in vars(c)), None)
        for name in ("apply", "_backend_apply_gradients", "_clip_gradients")
    ]
    return all(owner is base for owner in owners)


_prepared: set[str] = set()


def _prepare(keras: Any, adapter: Any) -> None:
    """Patch Keras' ``compile`` and ``fit`` for distributed optimizers. Can be called repeatedly."""
    if keras.__name__ in _prepared:
        return
    _prepared.add(keras.__name__)
    _move_reduction_to_loss_scaling(keras)
    _count_samples(keras)
    _weight_synchronized_data(keras)
    if keras.config.backend() == "torch":
        adapter.watch_data()
    if keras.config.backend() == "tensorflow":
        _keep_xla_off(keras)
        checks.watch(keras)
    if keras.config.backend() == "jax":
        from horovod._keras import backend_jax

        backend_jax.watch(keras, is_distributed)


def _move_reduction_to_loss_scaling(keras: Any) -> None:
    kind = keras.optimizers.LossScaleOptimizer
    plain = kind.__init__

    @functools.wraps(plain)
    def __init__(self: Any, inner_optimizer: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, inner_optimizer, *args, **kwargs)
        if is_distributed(inner_optimizer) and not isinstance(self, DistributedMixin):
            distribute(keras, self, inner_optimizer._hvd.reduction, rebuild=False)

    kind.__init__ = __init__


def _count_samples(keras: Any) -> None:
    """Tell optimizers with weight="batch" the number of samples in each batch of ``fit``."""
    trainer = next(kind for kind in keras.Model.__mro__ if "compute_loss" in vars(kind))
    name = "_compute_loss" if "_compute_loss" in vars(trainer) else "compute_loss"
    plain = getattr(trainer, name)

    @functools.wraps(plain)
    def compute_loss(self: Any, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **options: Any) -> Any:
        control = getattr(getattr(self, "optimizer", None), "_hvd", None)
        sample_weight = args[0] if args else options.get("sample_weight")
        tracker = getattr(self, "_loss_tracker", None)
        # Undo `_leave_copies_out`, in case the previous training step did not call the replaced `update_state`.
        getattr(tracker, "__dict__", {}).pop("update_state", None)
        if control is not None and control.reduction.weight == "batch" and options.get("training", True):
            count = control.reduction.batch = _samples(keras, self, y_pred, sample_weight)
            if sample_weight is not None and tracker is not None:
                _leave_copies_out(keras, tracker, count)
        return plain(self, x, y, y_pred, *args, **options)

    setattr(trainer, name, compute_loss)


def _samples(keras: Any, model: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Return the number of values whose mean is the batch's loss, or 0 for a batch that ``hvd.sync`` has copied."""
    for loss in keras.tree.flatten(model.loss):
        reduction = getattr(loss, "reduction", "mean")
        if reduction not in ("mean", "sum_over_batch_size"):
            raise ValueError(
                f'weight must not be "batch" for a loss with reduction={reduction!r}; use "sum_over_batch_size", or '
                "pass a function that counts samples"
            )
    ops, outputs = keras.ops, keras.tree.flatten(y_pred)
    masks = [mask for mask in map(_mask, outputs) if mask is not None]
    if masks and len(outputs) > 1:
        raise ValueError(
            'weight must not be "batch" for several outputs with masks; pass a function that counts samples'
        )
    if masks:
        count = ops.sum(ops.cast(masks[0], "float32"))
    else:
        shape = ops.shape(outputs[0])
        count = math.prod(shape[:-1]) if len(outputs) == 1 and len(shape) > 1 else shape[0]
    weights = [one for one in keras.tree.flatten(sample_weight) if one is not None]
    if not weights:
        return count
    first = ops.convert_to_tensor(weights[0])
    # Recognize copied batches from hvd.sync by their sample weights of -0.0.
    copies = ops.all(ops.logical_and(first == 0, 1 / first < 0))
    return ops.where(copies, 0, count)


def _mask(output: Any) -> Any:
    try:
        from keras.src.backend.common.masking import get_keras_mask
    except ImportError:
        # Read the mask directly, because older versions of Keras lack the function get_keras_mask.
        return getattr(output, "_keras_mask", None)
    return get_keras_mask(output)


def _leave_copies_out(keras: Any, tracker: Any, count: Any) -> None:
    """Make the next update of the metric ``loss`` ignore the batch if ``hvd.sync`` added it as a copy."""

    def update_state(values: Any, sample_weight: Any = None) -> Any:
        del tracker.update_state
        given = 1 if sample_weight is None else sample_weight
        return tracker.update_state(values, sample_weight=keras.ops.where(count > 0, given, 0))

    tracker.update_state = update_state


def _weight_synchronized_data(keras: Any) -> None:
    """Make ``fit`` weight averages by the number of samples if its data comes from ``hvd.sync``."""
    trainer = next(kind for kind in keras.Model.__mro__ if "fit" in vars(kind))
    plain = trainer.fit

    @functools.wraps(plain)
    def fit(self: Any, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        control = getattr(getattr(self, "optimizer", None), "_hvd", None)
        if control is not None and getattr(x, "hvd_synchronized", False) and control.reduction.active():
            if control.reduction.weight is None:
                # Check that the optimizer's other settings allow weighted averages.
                replace(control.reduction, weight="batch")
                control.reduction.weight, self.train_function = "batch", None
            if control.reduction.weight != "batch":
                raise ValueError(
                    f'weight must be None or "batch" with data from hvd.sync, got {control.reduction.weight!r}'
                )
        return plain(self, x, *args, **kwargs)

    trainer.fit = fit


def _keep_xla_off(keras: Any) -> None:
    """Disable XLA if ``jit_compile`` is "auto" (the default), because XLA cannot compile collectives."""
    trainer = keras.Model.__mro__[0]
    for kind in keras.Model.__mro__:
        if "_resolve_auto_jit_compile" in vars(kind):
            trainer = kind
            break
    plain = getattr(trainer, "_resolve_auto_jit_compile", None)
    if plain is None:
        # Older versions of Keras decide about XLA elsewhere. There, ``check_traceable`` raises an error if XLA is used.
        return

    @functools.wraps(plain)
    def _resolve_auto_jit_compile(self: Any) -> bool:
        return False if is_distributed(getattr(self, "optimizer", None)) else plain(self)

    trainer._resolve_auto_jit_compile = _resolve_auto_jit_compile
