"""Access to the learning rate of a model's optimizer, and to the velocities that contain it."""

from typing import Any


def bring_values(model: Any) -> None:
    """On the JAX backend, copy the current values to the variables, which do not hold them while ``fit`` runs.

    ``fit`` reads the variables again afterwards.
    """
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None:
        sync()


def _plain_optimizer(model: Any) -> Any:
    """Return the optimizer that has learning rate and velocities: the inner one under loss scaling."""
    optimizer = model.optimizer
    return getattr(optimizer, "inner_optimizer", optimizer)


def _rate_name(optimizer: Any) -> str:
    return "learning_rate" if hasattr(optimizer, "learning_rate") else "lr"


def learning_rate(model: Any) -> float:
    """Return the current learning rate."""
    bring_values(model)
    optimizer = _plain_optimizer(model)
    rate = getattr(optimizer, _rate_name(optimizer))
    return float(rate.numpy() if hasattr(rate, "numpy") else rate)


def known_rate(model: Any) -> float | None:
    """Return the current learning rate, or None if it cannot be read."""
    try:
        return learning_rate(model)
    except (AttributeError, TypeError, ValueError, RuntimeError, NotImplementedError):
        return None


def set_learning_rate(model: Any, value: float) -> None:
    """Set the learning rate.

    Raises:
        ValueError: The optimizer's rate comes from a Keras schedule.
    """
    optimizer = _plain_optimizer(model)
    own = getattr(optimizer, "_learning_rate", None)
    if callable(own) and not hasattr(own, "assign"):
        raise ValueError(
            f"the optimizer's learning_rate is a {type(own).__name__}, which a callback cannot change; accepted is a "
            "number"
        )
    setattr(optimizer, _rate_name(optimizer), value)


def scale_velocities(model: Any, factor: float) -> None:
    """Multiply the momentum buffers of SGD, RMSprop and their subclasses, which contain the learning rate.

    Those of other optimizers, such as Muon, do not.
    """
    optimizer = _plain_optimizer(model)
    kinds = [kind for kind in type(optimizer).__mro__ if kind.__module__.partition(".")[0] in ("keras", "tf_keras")]
    if not any(kind.__name__ in ("SGD", "RMSprop") for kind in kinds):
        return
    if hasattr(optimizer, "get_slot_names"):  # legacy optimizers of Keras 2
        if "momentum" not in optimizer.get_slot_names():
            return
        velocities = [optimizer.get_slot(variable, "momentum") for variable in model.trainable_weights]
    else:
        velocities = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or []
    for velocity in velocities:
        if velocity is not None:
            velocity.assign(velocity * factor)
