"""Reader of ``check_in_sync`` for Keras and TensorFlow: models, layers, optimizers and variables.

They are recognized by their attributes, so no framework is imported.
"""

from collections.abc import Callable
from typing import Any

from horovod.common.in_sync.fingerprints import Array, Reader
from horovod.common.own_variables import is_own

# Batch normalization: each rank computes its own from the batches it has seen.
_OWN = ("moving_mean", "moving_variance")


def reader(to_numpy: Callable[[Any], Any], is_local: Callable[[Any], bool] = lambda variable: False) -> Reader:
    """Return a reader for a framework.

    Args:
        to_numpy: Converts tensors and variables to arrays.
        is_local: Returns True for model variables to leave out, in addition to the moving statistics of batch
            normalization.
    """

    def read(value: Any) -> Any:
        if hasattr(value, "apply_gradients"):
            return {"variables": [None if is_own(one) else one for one in optimizer_variables(value)]}
        if hasattr(value, "get_weights"):
            weights = [None if _is_own(variable) or is_local(variable) else variable for variable in value.weights]
            optimizer = getattr(value, "optimizer", None)
            # Optimizer first: a different learning rate is more likely the cause of a difference than the weights.
            return {"weights": weights} if optimizer is None else {"optimizer": optimizer, "weights": weights}
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return _array(to_numpy(value), _label(value))
        return value

    return read


def name_of(value: Any) -> str:
    """Return the default name of an object."""
    if hasattr(value, "apply_gradients"):
        return "optimizer"
    return "model" if hasattr(value, "get_weights") else type(value).__name__


def optimizer_variables(optimizer: Any) -> list[Any]:
    """Return all variables of a Keras optimizer, including those of an inner optimizer. They are a list or a method."""
    if optimizer is None:
        return []
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def _is_own(variable: Any) -> bool:
    return _label(variable).rpartition("/")[2] in _OWN


def _label(variable: Any) -> str:
    """Return the variable's path, such as ``dense/kernel``; empty for a tensor."""
    if not hasattr(variable, "assign"):
        return ""
    return str(getattr(variable, "path", None) or getattr(variable, "name", "")).partition(":")[0]


def _array(array: Any, label: str) -> Any:
    if getattr(array, "dtype", None) is None or array.dtype.kind == "O":  # strings
        return array.tolist() if hasattr(array, "tolist") else array
    return Array(str(array.dtype), tuple(array.shape), array.tobytes(), lambda: array.reshape(-1).tolist(), label)
