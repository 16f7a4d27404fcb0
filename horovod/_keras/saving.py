"""load_model: a model from a file, its optimizer distributed."""

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
    """The model in ``filepath``; its optimizer, whatever it is, goes through ``wrap``, which keeps its state.

    ``custom_optimizers``: classes known by their names. ``custom_objects``: as for Keras. ``legacy_opts``: the names
    of optimizers mean those of ``keras.optimizers.legacy``, which only Keras 2 has: ValueError with Keras 3.
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
            # Keras has compiled the model, and may have chosen XLA, for a plain optimizer.
            model.jit_compile = False
    return model


def _classes(module: Any) -> list[type]:
    return [value for value in vars(module).values() if isinstance(value, type)]


def _by_name(classes: Iterable[type]) -> dict[str, Any]:
    """Files name classes as they are spelled or in lower case."""
    names: dict[str, Any] = {}
    for kind in classes:
        if not isinstance(kind, type):
            raise ValueError(f"custom_optimizers contains a {type(kind).__name__}; accepted are classes")
        names[kind.__name__] = names[kind.__name__.lower()] = kind
    return names
