"""Detection of failed compiled steps on JAX during training.

JAX starts a step and returns before the step is done. If a collective in it fails, its results raise when they are
read, but Keras passes on logs that cannot be read without checking them. So training with a distributed optimizer
checks the results itself: those of earlier steps as soon as they are ready, and all of them at the end of an epoch.

JAX raises one of two types for the same error, depending on how the program was called. ``fit`` and ``train_on_batch``
raise HorovodInternalError instead, like collectives outside of compiled steps.
"""

import functools
from collections.abc import Callable
from typing import Any

from horovod._jax.errors import as_ours


def watch(keras: Any, is_distributed: Callable[[Any], bool]) -> None:
    """Make ``fit`` and ``train_on_batch`` check results. Called once per process.

    ``is_distributed`` tells whether the checks apply to a model with a given optimizer.
    """
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
        # A new fit begins; the last results of the previous one may have failed.
        getattr(step, "_hvd_forget", lambda: None)()
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
                    array.block_until_ready()  # raises if the step failed
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
                    # A step that raised has consumed its arguments, and fit calls this function to clean up. In the
                    # first step of an epoch, Keras has emptied the variables: `value` would then call their
                    # initializer, which no longer exists, and that error would hide the user's.
                    value = getattr(variable, "_value", None)
                    if hasattr(value, "block_until_ready") and not value.is_deleted():
                        value.block_until_ready()
        return result

    return jax_state_sync
