"""Detects the Keras version: Keras 3, or Keras 2 (tf_keras, or TensorFlow up to 2.15)."""

import importlib
import importlib.util
import os
from typing import Any


def import_keras() -> Any:
    """Return the Keras module used by this process.

    Raises:
        ImportError: If Keras is not installed, or Keras 2 was requested and is not installed.
    """
    wanted = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    if wanted and importlib.util.find_spec("tf_keras") is not None:
        return importlib.import_module("tf_keras")
    try:
        keras = importlib.import_module("keras")
    except ImportError as error:
        raise ImportError(f"Keras cannot be imported ({error}); install it with: pip install keras") from error
    if wanted and not is_legacy(keras):
        raise ImportError(
            "TF_USE_LEGACY_KERAS selects Keras 2, which is missing; install it with: pip install tf-keras"
        )
    return keras


def is_legacy(keras: Any) -> bool:
    """Return True if this module is Keras 2."""
    return int(str(keras.__version__).split(".")[0]) < 3


def keras_of(optimizer: Any, default: Any) -> Any:
    """Return the Keras module of an optimizer, because a program can use both tf_keras and Keras 3."""
    modules = {kind.__module__.partition(".")[0] for kind in type(optimizer).__mro__}
    for name in ("tf_keras", "keras"):
        if name in modules:
            return importlib.import_module(name)
    return default


def backend_of(keras: Any) -> str:
    """Return the name of the backend that this Keras module uses."""
    return "tensorflow" if is_legacy(keras) else str(keras.config.backend())


def build_optimizer(optimizer: Any, model: Any) -> None:
    """Create the variables of an optimizer that has not taken a step, so that they exist on all ranks.

    Args:
        optimizer: A Keras optimizer, or None.
        model: Built model whose trainable variables the optimizer updates.
    """
    trained = model.trainable_variables
    if optimizer is None or getattr(optimizer, "built", False) or not trained:
        return
    if hasattr(optimizer, "build"):
        optimizer.build(trained)
    elif hasattr(optimizer, "_create_all_weights"):  # Legacy optimizers of Keras 2 have no build method.
        optimizer._create_all_weights(trained)


def legacy_rates(optimizer: Any) -> list[Any]:
    """Return the hyperparameter variables of a legacy Keras 2 optimizer, which ``variables`` omits."""
    plain = getattr(optimizer, "inner_optimizer", optimizer)
    values = getattr(plain, "_hyper", None)
    return [values[name] for name in sorted(values) if hasattr(values[name], "assign")] if values else []


def dtype_name(variable: Any) -> str:
    """Return the name of a Keras or TensorFlow variable's dtype, such as "float32"."""
    return str(getattr(variable.dtype, "name", variable.dtype))
