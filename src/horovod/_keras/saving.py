"""load_model: loads a model from a file and makes its optimizer distributed."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from horovod._keras.versions import is_legacy


def load_model(
    keras: Any,
    wrap: Callable[[Any], Any],
    filepath: Any,
    custom_optimizers: Iterable[type] | None,
    custom_objects: Mapping[str, Any] | None,
    legacy_opts: bool,
) -> Any:
    """Return the model in ``filepath``, with its optimizer replaced by ``wrap(optimizer)``, which keeps its state.

    Args:
        keras: The Keras module.
        wrap: Function that makes an optimizer distributed.
        filepath: Path of the file.
        custom_optimizers: Optimizer classes, known by their names.
        custom_objects: As for Keras.
        legacy_opts: True if names of optimizers refer to ``keras.optimizers.legacy``.

    Raises:
        ValueError: ``legacy_opts`` is True with Keras 3, which has no legacy optimizers.
    """
    objects: dict[str, Any] = {}
    if legacy_opts:
        if not is_legacy(keras):
            raise ValueError(f"legacy_opts is True; accepted with Keras {keras.__version__} is False")
        objects.update(_by_name(_classes(keras.optimizers.legacy)))
    objects.update(_by_name(custom_optimizers or ()))
    objects.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        model.optimizer = wrap(optimizer)
        if not is_legacy(keras) and keras.config.backend() == "tensorflow" and getattr(model, "jit_compile", False):
            # Keras has compiled the model for a plain optimizer, and may have chosen XLA.
            model.jit_compile = False
    return model


def _classes(module: Any) -> list[type]:
    return [value for value in vars(module).values() if isinstance(value, type)]


def _by_name(classes: Iterable[type]) -> dict[str, Any]:
    """Return the classes by name, as spelled and in lower case; files use both."""
    names: dict[str, Any] = {}
    for kind in classes:
        if not isinstance(kind, type):
            raise ValueError(f"custom_optimizers contains a {type(kind).__name__}; accepted are classes")
        names[kind.__name__] = names[kind.__name__.lower()] = kind
    return names
