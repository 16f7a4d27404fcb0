"""Which Keras: 3, or 2 as tf_keras or as the Keras of TensorFlow 2.15 and older."""

import os
from typing import Any


def legacy_wanted() -> bool:
    """Has the user asked for Keras 2 (``TF_USE_LEGACY_KERAS=1``)?"""
    return os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")


def is_legacy(keras: Any) -> bool:
    """Is this module Keras 2?"""
    return int(str(keras.__version__).split(".")[0]) < 3


def keras_of(optimizer: Any, default: Any) -> Any:
    """The Keras that an optimizer is of: a program may have tf_keras beside Keras 3."""
    if any(kind.__module__.startswith("tf_keras.") for kind in type(optimizer).__mro__):
        import tf_keras

        return tf_keras
    return default
