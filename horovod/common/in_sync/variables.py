"""How ``check_in_sync`` reads the objects of Keras and TensorFlow: models, layers, optimizers and variables, known by
what they have, so that no framework is imported here."""

from collections.abc import Callable
from typing import Any

from horovod.common.in_sync.fingerprints import Array, Reader
from horovod.common.own_variables import is_own

_OWN = ("moving_mean", "moving_variance")  # of batch normalisation: each rank's own, from the batches that it has seen


def reader(to_numpy: Callable[[Any], Any], is_local: Callable[[Any], bool] = lambda variable: False) -> Reader:
    """For a framework whose tensors and variables ``to_numpy`` makes arrays of. ``is_local``: variables of models that
    are left out, as the moving statistics of batch normalisation are."""

    def read(value: Any) -> Any:
        if hasattr(value, "apply_gradients"):
            return {"variables": [None if is_own(one) else one for one in optimizer_variables(value)]}
        if hasattr(value, "get_weights"):
            weights = [None if _is_own(variable) or is_local(variable) else variable for variable in value.weights]
            optimizer = getattr(value, "optimizer", None)
            # Its learning rate is rather the cause of a difference than the weights are.
            return {"weights": weights} if optimizer is None else {"optimizer": optimizer, "weights": weights}
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return _array(to_numpy(value), _label(value))
        return value

    return read


def name_of(value: Any) -> str:
    """What an object given without a name is called."""
    if hasattr(value, "apply_gradients"):
        return "optimizer"
    return "model" if hasattr(value, "get_weights") else type(value).__name__


def optimizer_variables(optimizer: Any) -> list[Any]:
    """All variables of a Keras optimizer, which has them as a list or as a method, and those of one within it."""
    if optimizer is None:
        return []
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def _is_own(variable: Any) -> bool:
    return _label(variable).rpartition("/")[2] in _OWN


def _label(variable: Any) -> str:
    """``dense/kernel``; empty for a tensor."""
    if not hasattr(variable, "assign"):
        return ""
    return str(getattr(variable, "path", None) or getattr(variable, "name", "")).partition(":")[0]


def _array(array: Any, label: str) -> Any:
    if getattr(array, "dtype", None) is None or array.dtype.kind == "O":  # texts
        return array.tolist() if hasattr(array, "tolist") else array
    return Array(str(array.dtype), tuple(array.shape), array.tobytes(), lambda: array.reshape(-1).tolist(), label)
