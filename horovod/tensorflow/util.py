"""Small helpers, some of which other software imports from here."""

import os
from typing import Any

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Does an operation run at once? Not in a tf.function and not in a graph for sessions."""
    return tf.executing_eagerly()


def vars_to_refs(variables: Any) -> Any:
    """Hashable stand-ins for variables: a list (of lists) of them becomes a tuple (of tuples) of references."""
    if isinstance(variables, (list, tuple)):
        return tuple(vars_to_refs(variable) for variable in variables)
    return variables.ref()


def refs_to_vars(references: Any) -> Any:
    """Inverse of ``vars_to_refs``; tuples come back as lists."""
    if isinstance(references, (list, tuple)):
        return [refs_to_vars(reference) for reference in references]
    return references.deref()


def elastic() -> bool:
    """May the number of ranks change while traced functions live on (HOROVOD_ELASTIC=1)?"""
    return os.environ.get("HOROVOD_ELASTIC", "").strip() == "1"
