"""The learning rate of a model's optimizer, and the velocities that contain it."""

from typing import Any


def bring_values(model: Any) -> None:
    """With the JAX backend, bring the values of variables back, which are elsewhere while ``fit`` runs; ``fit`` then
    takes them from the variables again."""
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None:
        sync()


def _plain_optimizer(model: Any) -> Any:
    """The one that has learning rate and velocities: the inner one under loss scaling."""
    optimizer = model.optimizer
    return getattr(optimizer, "inner_optimizer", optimizer)


def _rate_name(optimizer: Any) -> str:
    return "learning_rate" if hasattr(optimizer, "learning_rate") else "lr"


def learning_rate(model: Any) -> float:
    """The learning rate in force."""
    bring_values(model)
    optimizer = _plain_optimizer(model)
    rate = getattr(optimizer, _rate_name(optimizer))
    return float(rate.numpy() if hasattr(rate, "numpy") else rate)


def known_rate(model: Any) -> float | None:
    """Return the learning rate in force, or None if the optimizer has none that can be read."""
    try:
        return learning_rate(model)
    except (AttributeError, TypeError, ValueError, RuntimeError, NotImplementedError):
        return None


def set_learning_rate(model: Any, value: float) -> None:
    """ValueError for an optimizer whose rate comes from a schedule of Keras."""
    optimizer = _plain_optimizer(model)
    own = getattr(optimizer, "_learning_rate", None)
    if callable(own) and not hasattr(own, "assign"):
        raise ValueError(
            f"the optimizer's learning_rate is a {type(own).__name__}, which a callback cannot change; accepted is a "
            "number"
        )
    setattr(optimizer, _rate_name(optimizer), value)


def scale_velocities(model: Any, factor: float) -> None:
    """Multiplies the momentum buffers of SGD, RMSprop and what derives from them: they contain the learning rate. Those
    of others, as of Muon, do not."""
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
