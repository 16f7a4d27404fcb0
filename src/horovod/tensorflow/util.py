"""Small helpers, some of which other software imports."""

import os
from typing import Any

import tensorflow as tf

from horovod.common.contract.settings import BY_NAME


def _executing_eagerly() -> bool:
    """Return True if operations run immediately, that is, not in a tf.function or a graph for sessions."""
    return tf.executing_eagerly()


def vars_to_refs(vars: Any) -> Any:
    """Replace variables by hashable references; lists (of lists) become tuples (of tuples).

    Args:
        vars (tf.Variable or nested list): Variables.

    Returns:
        References in the same structure.
    """
    if isinstance(vars, (list, tuple)):
        return tuple(vars_to_refs(variable) for variable in vars)
    return vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """Invert ``vars_to_refs``. Tuples become lists.

    Args:
        refs (reference or nested tuple): References.

    Returns:
        Variables in the same structure.
    """
    if isinstance(refs, (list, tuple)):
        return [refs_to_vars(reference) for reference in refs]
    return refs.deref()


def elastic() -> bool:
    """Return True if the number of ranks may change while traced functions live on (HOROVOD_ELASTIC=1)."""
    return bool(BY_NAME["HOROVOD_ELASTIC"].parse(os.environ.get("HOROVOD_ELASTIC", "")))
