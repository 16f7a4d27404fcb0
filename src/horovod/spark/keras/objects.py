"""Functions that convert Keras objects to picklable form and back.

A model is packed as the file that Keras saves, and an optimizer or metric as its class and config. The class of the
object decides whether Keras 2 or Keras 3 is used.
"""

import contextlib
import copy
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from horovod._keras.alike import differing
from horovod._keras.backend import backend_of, is_legacy, keras_of


@dataclass(frozen=True)
class PackedModel:
    """Keras model in picklable form.

    Attributes:
        legacy: True for Keras 2.
        backend: Name of Keras' backend.
        floatx: Keras' default float dtype.
        file: Contents of the file that ``model.save`` writes.
    """

    legacy: bool
    backend: str
    floatx: str
    file: bytes


@dataclass(frozen=True)
class PackedObject:
    """An optimizer or metric in picklable form: its class and config.

    `more` contains the attributes that are missing from the config, by name. For a variable, it contains the value.
    """

    kind: type
    config: dict[str, Any]
    more: dict[str, Any] = field(default_factory=dict)


def module_of(value: Any) -> Any:
    """Return the Keras module to which the object belongs, or None."""
    return keras_of(value, None)


def pack(value: Any) -> Any:
    """Pack models, optimizers and metrics, including those in lists and dicts. Other objects are left unchanged."""
    if isinstance(value, (list, tuple)):
        return [pack(one) for one in value]
    if isinstance(value, Mapping):
        return {name: pack(one) for name, one in value.items()}
    keras = module_of(value) if not isinstance(value, type) else None
    if keras is None:
        return value
    if isinstance(value, keras.Model):
        return pack_model(value)
    if isinstance(value, keras.optimizers.Optimizer):
        return _pack_optimizer(keras, value)
    if isinstance(value, keras.metrics.Metric):
        return PackedObject(type(value), value.get_config())
    return value


def _pack_optimizer(keras: Any, optimizer: Any) -> PackedObject:
    """Pack an optimizer without its trained state. Raises ValueError if some attributes cannot be packed."""
    config: dict[str, Any] = optimizer.get_config()
    more: dict[str, Any] = {}
    schedule = getattr(optimizer, "_learning_rate", None)
    if callable(schedule) and not hasattr(schedule, "assign") and not is_legacy(keras):
        # Pickle the learning rate schedule separately, because ranks cannot recreate an unknown class from a config.
        config, more = {**config, "learning_rate": 0.001}, {"learning_rate": schedule}
    packed = PackedObject(type(optimizer), config, more)
    state = _set_by_training(keras, optimizer, packed)

    def lost() -> list[str]:
        return [name for name in differing(keras, optimizer, unpack(packed)) if name not in state]

    for name in lost():
        if name in vars(optimizer):
            value = vars(optimizer)[name]
            more[name] = value.numpy() if _is_variable(value) else pack(value)
    # Fail if attributes still differ after unpacking, because they would be lost. Skip inner optimizers, which were
    # checked separately.
    if still := [name for name in lost() if not isinstance(more.get(name), PackedObject)]:
        raise ValueError(
            f"optimizer: a {type(optimizer).__name__} cannot be sent to the ranks, because its get_config does not "
            f"return {', '.join(still)}; let get_config return all arguments of __init__"
        )
    return packed


def _set_by_training(keras: Any, optimizer: Any, packed: PackedObject) -> set[str]:
    """Return the names of the optimizer attributes that training changes and that therefore need not be packed.

    The result is empty if the optimizer has not been used in training.
    """
    if not any(getattr(optimizer, name, False) for name in ("built", "_built", "_hypers_created")):
        return set()
    fresh, used = unpack(packed), unpack(packed)
    # Run a training step on a copy to see which attributes change. Ignore exceptions, because some optimizers need more
    # than a gradient for a step.
    with contextlib.suppress(Exception):
        if is_legacy(keras):
            import tensorflow as tf

            used.apply_gradients([(tf.zeros(1), tf.Variable([0.0]))])
        else:
            used.apply_gradients([(keras.ops.zeros(1), keras.Variable([0.0]))])
    values = vars(optimizer)
    changed = {name for name in differing(keras, used, fresh) if not hasattr(values.get(name), "apply_gradients")}
    return changed | {name for name, value in values.items() if _is_variable(value)}


def _is_variable(value: Any) -> bool:
    """Return True for a Keras or TensorFlow variable. An optimizer also has ``assign``, but is not a variable."""
    return hasattr(value, "assign") and hasattr(value, "numpy")


def unpack(value: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Convert the result of ``pack`` back to an object that equals the original."""
    if isinstance(value, list):
        return [unpack(one, custom_objects) for one in value]
    if isinstance(value, dict):
        return {name: unpack(one, custom_objects) for name, one in value.items()}
    if isinstance(value, PackedModel):
        return unpack_model(value, custom_objects)
    if isinstance(value, PackedObject):
        config = copy.deepcopy(value.config)  # Copy the config, because some from_config methods change it.
        made = value.kind.from_config(config)  # type: ignore[attr-defined]
        for name, one in value.more.items():
            if isinstance(one, (np.ndarray, np.generic)) and hasattr(getattr(made, name, None), "assign"):
                getattr(made, name).assign(one)
            else:
                setattr(made, name, unpack(one))
        return made
    return value


def pack_model(model: Any) -> PackedModel:
    """Pack a model. Raises ValueError if Keras cannot save it."""
    keras = module_of(model)
    with tempfile.TemporaryDirectory(prefix="horovod-keras-") as folder:
        path = f"{folder}/model.keras"
        try:
            model.save(path)
        except (ValueError, NotImplementedError) as error:
            raise ValueError(f"model {model.name!r} cannot be saved by Keras: {error}") from error
        with open(path, "rb") as file:
            return PackedModel(is_legacy(keras), backend_of(keras), str(keras.backend.floatx()), file.read())


def unpack_model(packed: PackedModel, custom_objects: Mapping[str, Any] | None = None, compiled: bool = True) -> Any:
    """Load a model from its packed form.

    Args:
        packed: Model in packed form.
        custom_objects: Classes and functions of the model by name.
        compiled: True to restore the compiled state, if the file contains it completely.

    Returns:
        The model.

    Raises:
        ValueError: If the model cannot be loaded, for example because ``custom_objects`` lacks a class.
    """
    keras = import_keras_for(packed)
    with tempfile.TemporaryDirectory(prefix="horovod-keras-") as folder:
        path = f"{folder}/model.keras"
        with open(path, "wb") as file:
            file.write(packed.file)
        if compiled:
            try:
                return keras.models.load_model(path, custom_objects=dict(custom_objects or {}))
            except (TypeError, ValueError, AttributeError):
                pass  # Load the model without compiling it, for example because its loss function is unknown.
        try:
            return keras.models.load_model(path, custom_objects=dict(custom_objects or {}), compile=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the model cannot be loaded, custom_objects may lack something: {error}") from error


def environment_for(packed: PackedModel) -> dict[str, str]:
    """Return environment variables that must be set before Keras is imported."""
    legacy = {"TF_USE_LEGACY_KERAS": "1" if packed.legacy else "0"}
    return legacy if packed.legacy else {**legacy, "KERAS_BACKEND": packed.backend}


def import_keras_for(packed: PackedModel) -> Any:
    """Import the model's version of Keras. Raises ImportError if this process uses another Keras or backend."""
    import importlib
    import sys

    if "keras" not in sys.modules and "tf_keras" not in sys.modules:
        os.environ.update(environment_for(packed))
    if packed.legacy:
        try:
            keras = importlib.import_module("tf_keras")
        except ImportError:
            keras = importlib.import_module("keras")  # With TensorFlow 2.15 and older, the package keras is Keras 2.
    else:
        keras = importlib.import_module("keras")
    if is_legacy(keras) != packed.legacy or backend_of(keras) != packed.backend:
        raise ImportError(
            f"the model is of Keras {2 if packed.legacy else 3} on {packed.backend}, this process has Keras "
            f"{keras.__version__} on {backend_of(keras)}; set KERAS_BACKEND={packed.backend}"
        )
    return keras
