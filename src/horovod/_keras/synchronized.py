"""Warning about layers that request statistics over all replicas from Keras, but get those of their own rank."""

import functools
from typing import Any

from horovod.common.contract.log import warn_user
from horovod.common.state import state

_watched: set[type] = set()


def watch(keras: Any) -> None:
    """Make training with a distributed optimizer warn about ``BatchNormalization(synchronized=True)``, once per model.

    Keras synchronizes only between the replicas of ``tf.distribute``, so this concerns TensorFlow alone. Other backends
    reject the argument.
    """
    for kind in keras.Model.__mro__:
        if "make_train_function" in vars(kind):
            if kind not in _watched:
                _watched.add(kind)
                kind.make_train_function = _warning(kind.make_train_function)
            return


def _warning(make: Any) -> Any:
    @functools.wraps(make)
    def make_train_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "train_function", None) is None and _is_distributed(getattr(self, "optimizer", None)):
            names = [str(layer.name) for layer in self._flatten_layers() if getattr(layer, "synchronized", False)]
            if names:
                warn_user(
                    f"the layers {', '.join(names)} have synchronized=True, which Keras heeds under tf.distribute "
                    "only: each rank normalises by the statistics of its own batch. Use horovod.tensorflow's "
                    "hvd.SyncBatchNormalization for those of all ranks"
                )
        return make(self, *args, **kwargs)

    return make_train_function


def _is_distributed(optimizer: Any) -> bool:
    plain = getattr(optimizer, "inner_optimizer", optimizer)
    controls = [getattr(one, "_hvd", None) for one in (optimizer, plain)]
    return state.job is not None and any(one is not None and one.reduction.active() for one in controls)
