"""Failures of compiled steps on JAX, seen while training goes on.

JAX starts a step and returns before it is done; when a collective in it fails, its results are errors in waiting, which
Keras never looks at: logs that cannot be read are passed on as they are. So training with a distributed optimizer
looks at the results itself: at those of earlier steps whenever they are there, and at all at the end of an epoch.

JAX has two types for one error, depending on how it called the program; ``fit`` and ``train_on_batch`` raise
HorovodInternalError instead, as collectives outside of compiled steps do.
"""

import functools
from collections.abc import Callable
from typing import Any

from horovod._jax.errors import as_ours


def watch(keras: Any, is_distributed: Callable[[Any], bool]) -> None:
    """Once a process: makes ``fit`` and ``train_on_batch`` of Keras look. ``is_distributed``: does it concern a model
    with this optimizer?"""
    for kind in keras.Model.__mro__:
        if "make_train_function" in vars(kind) and "jax_state_sync" in vars(kind):
            kind.make_train_function = _watching(kind.make_train_function, is_distributed)
            kind.jax_state_sync = _raising(kind.jax_state_sync, is_distributed)
            return


def _watching(make: Any, is_distributed: Callable[[Any], bool]) -> Any:
    @functools.wraps(make)
    def make_train_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = make(self, *args, **kwargs)
        step = self.train_function
        getattr(step, "_hvd_forget", lambda: None)()  # another fit begins; what the last one left may have failed
        if is_distributed(getattr(self, "optimizer", None)) and not getattr(step, "_hvd_watches", False):
            self.train_function = _watched(step)
        return result

    return make_train_function


def _watched(step: Any) -> Any:
    last: list[Any] = []

    @functools.wraps(step)
    def train_function(state: Any, iterator: Any) -> Any:
        with as_ours():
            for array in last:
                if array.is_ready():
                    array.block_until_ready()  # raises what became of the step
            last.clear()
            logs, state = step(state, iterator)
        last.extend(value for value in logs.values() if hasattr(value, "is_ready"))
        return logs, state

    train_function._hvd_watches = True  # type: ignore[attr-defined]
    train_function._hvd_forget = last.clear  # type: ignore[attr-defined]
    return train_function


def _raising(sync: Any, is_distributed: Callable[[Any], bool]) -> Any:
    @functools.wraps(sync)
    def jax_state_sync(self: Any) -> Any:
        result = sync(self)
        if is_distributed(getattr(self, "optimizer", None)):
            with as_ours():
                for variable in self.trainable_variables:
                    # A step that raised has taken its arguments along; fit comes here to tidy up after it. Where it was
                    # the first of an epoch, Keras had emptied the variables: `value` would call their initializer,
                    # which is gone, and the error of that would hide the user's.
                    value = getattr(variable, "_value", None)
                    if hasattr(value, "block_until_ready") and not value.is_deleted():
                        value.block_until_ready()
        return result

    return jax_state_sync
