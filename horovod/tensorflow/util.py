"""Small helpers, some of which other software imports from here."""

import os
from typing import Any

import tensorflow as tf

from horovod.common.contract.settings import BY_NAME


def _executing_eagerly() -> bool:
    """Does an operation run at once? Not in a tf.function and not in a graph for sessions."""
    return tf.executing_eagerly()


def vars_to_refs(vars: Any) -> Any:
    """Hashable stand-ins for variables: a list (of lists) of them becomes a tuple (of tuples) of references."""
    if isinstance(vars, (list, tuple)):
        return tuple(vars_to_refs(variable) for variable in vars)
    return vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """Inverse of ``vars_to_refs``; tuples come back as lists."""
    if isinstance(refs, (list, tuple)):
        return [refs_to_vars(reference) for reference in refs]
    return refs.deref()


def elastic() -> bool:
    """May the number of ranks change while traced functions live on (HOROVOD_ELASTIC=1)?"""
    return bool(BY_NAME["HOROVOD_ELASTIC"].parse(os.environ.get("HOROVOD_ELASTIC", "")))
