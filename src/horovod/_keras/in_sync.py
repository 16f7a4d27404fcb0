"""Comparison of Keras models between ranks on any backend, based on ``horovod.common.in_sync``."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from horovod._keras.versions import backend_of, is_legacy
from horovod.common import in_sync
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.state import state


def check(
    face: Any,
    objects: Sequence[Any],
    named: Mapping[str, Any],
    process_set: ProcessSet = global_process_set,
    ignore: Collection[str] = (),
    local_variables: Iterable[Any] = (),
) -> str:
    """Compare values between ranks, as described for ``check_in_sync`` in api.py.

    ``face`` is an api.Face. ``local_variables`` are skipped, like those that the optimizer knows as local.
    """

    def leaves() -> dict[str, in_sync.Leaf]:
        given = in_sync.named(objects, named, in_sync.name_of)
        for value in given.values():
            sync = getattr(value, "jax_state_sync", None)
            if sync is not None:
                sync()  # while fit runs on JAX, the variables do not hold the current values
        local = {face.adapter.key(variable) for variable in local_variables}.union(*map(_local, given.values()))
        read = in_sync.reader(_to_numpy(face.keras), lambda variable: face.adapter.key(variable) in local)
        return in_sync.fingerprints(given, read, in_sync.check_ignore(ignore))

    return in_sync.check(leaves, process_set, face.adapter.face)


def check_model(face: Any, model: Any, local_variables: Any = None) -> None:
    """Compare a model in ``fit``.

    If there are local variables, the optimizer's variables are not compared, because its state for local variables
    differs.
    """
    local = list(local_variables or ())
    ignore = ["model.optimizer.*"] if local or _local(model) else []
    check(face, [model], {}, ignore=ignore, local_variables=local)


def is_due(steps: int) -> bool:
    """Return True if HOROVOD_CHECK_IN_SYNC_STEPS requests a check after this number of steps."""
    job = state.job
    return job is not None and job.check_steps > 0 and steps % job.check_steps == 0


def _local(value: Any) -> set[Any]:
    """Return the keys of the variables whose gradients a distributed optimizer does not reduce."""
    control = getattr(getattr(value, "optimizer", value), "_hvd", None)
    return control.reduction.local if control is not None else set()


def _to_numpy(keras: Any) -> Any:
    if not is_legacy(keras):
        if backend_of(keras) == "tensorflow":
            _require_eager()
        return keras.ops.convert_to_numpy
    _require_eager()
    return lambda value: value.numpy() if hasattr(value, "numpy") else value


def _require_eager() -> None:
    import tensorflow as tf

    if not tf.executing_eagerly():
        raise RuntimeError("check_in_sync works in eager code only, not in graphs and tf.functions")
