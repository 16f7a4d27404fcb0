"""Data for Keras 3's ``fit`` on ranks that have different numbers of batches.

Missing batches are filled with copies. A copy's sample weights are -0.0, which losses and weighted metrics treat as 0.
The sign marks the batch as a copy, which an optimizer with ``weight="batch"`` counts as 0 samples. Samples that the
program itself weights with 0 still count.
"""

from typing import Any

import keras
import numpy as np

from horovod.common.contract.log import warn_user
from horovod.common.objects import allgather_object, broadcast_object

POLICIES = ("pad", "stop")


def synchronized(frontend: Any, data: Any, policy: str, batch_size: int, shuffle: bool) -> Any:
    """Wrap a rank's data so that all ranks have the same number of batches; see ``sync`` in ``api.py``.

    ``frontend`` sends the messages between ranks.

    Raises:
        ValueError: If an argument or the data of any rank is invalid.
    """
    job = frontend.require_job()
    length, problem = 0, ""
    try:
        data = _indexed(data, batch_size, shuffle)
        length = _length(data)
        if policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
    except ValueError as error:
        problem = str(error)
    except Exception as error:  # Raise it below on all ranks, so that no rank waits for this one.
        problem = f"{type(error).__name__}: {error}"
    from_all = allgather_object((problem, policy, length), "sync", frontend=frontend)
    for rank, (problem, *_) in enumerate(from_all):
        if problem:
            raise ValueError(f"hvd.sync on rank {rank}: {problem}")
    if len({given for _, given, _ in from_all}) > 1:
        raise ValueError(f"policy must be the same on all ranks, got {[given for _, given, _ in from_all]}")
    lengths = [length for *_, length in from_all]
    steps = max(lengths) if policy == "pad" else min(lengths)
    if steps == 0:
        raise ValueError(f"data must have batches on {'a rank' if policy == 'pad' else 'all ranks'}, got {lengths}")
    if 0 in lengths and policy == "pad":
        root = next(rank for rank, one in enumerate(lengths) if one)
        copy = broadcast_object(_first(data) if job.rank == root else None, root, "sync", frontend=frontend)
    else:
        copy = None
    remaining = max(0, length - steps)
    if remaining:
        warn_user(
            f"hvd.sync: epochs have {steps} batches, as many as rank {lengths.index(steps)} has; {remaining} batches "
            f"of rank {job.rank} are unused"
        )
    made = _of_tensorflow(data, length, steps, copy) if _is_tensorflow(data) else Batches(data, length, steps, copy)
    made.hvd_synchronized, made.remaining = True, remaining
    return made


class Arrays(keras.utils.PyDataset):  # type: ignore[misc]
    """Dataset of batches of arrays. With ``shuffle``, the order is different in each epoch."""

    def __init__(self, arrays: tuple[Any, ...], batch_size: int, shuffle: bool) -> None:
        super().__init__()
        self._arrays, self._batch_size, self._shuffle = arrays, batch_size, shuffle
        self._count = len(keras.tree.flatten(arrays[0])[0])
        self.on_epoch_end()

    def on_epoch_end(self) -> None:
        """Choose the order of the samples for the next epoch."""
        self._order = np.random.permutation(self._count) if self._shuffle else np.arange(self._count)

    def __len__(self) -> int:
        return -(-self._count // self._batch_size)

    def __getitem__(self, index: int) -> Any:
        rows = self._order[index * self._batch_size : (index + 1) * self._batch_size]
        return keras.tree.map_structure(lambda array: None if array is None else array[rows], self._arrays)


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """Dataset of the first ``steps`` batches of a PyDataset.

    The PyDataset has ``length`` batches. If ``steps`` is larger, copies of a batch fill the remaining steps.
    """

    def __init__(self, data: Any, length: int, steps: int, copy: Any) -> None:
        super().__init__(data.workers, data.use_multiprocessing, data.max_queue_size)
        self._data, self._length, self._steps, self._copy = data, length, steps, copy

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, index: int) -> Any:
        if self._length >= self._steps:
            return self._data[index]
        if index < self._length:
            return _with_weights(self._data[index], padding=False)
        return _with_weights(self._data[self._length - 1] if self._length else self._copy, padding=True)

    def on_epoch_begin(self) -> None:
        """Call the original dataset's ``on_epoch_begin``."""
        self._data.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Call the original dataset's ``on_epoch_end``."""
        self._data.on_epoch_end()


def _of_tensorflow(data: Any, length: int, steps: int, copy: Any) -> Any:
    import tensorflow as tf

    def weighted(dataset: Any, padding: bool) -> Any:
        return dataset.map(lambda *parts: _with_weights(parts if len(parts) > 1 else parts[0], padding))

    if length >= steps:
        return data.take(steps)
    copies = weighted(data.take(1) if length else tf.data.Dataset.from_tensors(copy), True).repeat(steps - length)
    return weighted(data, False).concatenate(copies).apply(tf.data.experimental.assert_cardinality(steps))


def _indexed(data: Any, batch_size: int, shuffle: bool) -> Any:
    """Return ``data`` itself if it is a dataset. Otherwise, return a PyDataset of its arrays."""
    if isinstance(data, keras.utils.PyDataset) or _is_tensorflow(data):
        return data
    arrays = data if isinstance(data, tuple) else (data,)
    leaves = [one for one in keras.tree.flatten(arrays) if one is not None]
    if not leaves or not all(
        hasattr(one, "shape") and hasattr(one, "__getitem__") and len(one.shape) for one in leaves
    ):
        raise ValueError(
            "data must be a PyDataset, a tf.data.Dataset or a tuple of arrays (x, y) or (x, y, sample_weight), got a "
            f"{type(data).__name__}; for a generator, use fit(steps_per_epoch=n) with the same n on all ranks"
        )
    lengths = {int(one.shape[0]) for one in leaves}
    if len(lengths) != 1:
        raise ValueError(f"arrays in data must have the same length, got {sorted(lengths)}")
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size must be an integer of at least 1, got {batch_size!r}")
    return Arrays(
        keras.tree.map_structure(lambda one: None if one is None else np.asarray(one), arrays), batch_size, shuffle
    )


def _length(data: Any) -> int:
    if _is_tensorflow(data):
        number: int | None = int(data.cardinality())
        advice = "use data.take(n)" if number == -1 else "use data.apply(tf.data.experimental.assert_cardinality(n))"
    else:
        number = data.num_batches if hasattr(data, "num_batches") else len(data)
        advice = "define num_batches, or use fit(steps_per_epoch=n) with the same n on all ranks"
    if number is None or number < 0:
        kind = "infinite" if number in (None, -1) else "unknown"
        raise ValueError(f"the number of batches of data must be known, but it is {kind}; {advice}")
    return number


def _is_tensorflow(data: Any) -> bool:
    return hasattr(data, "cardinality") and hasattr(data, "element_spec")


def _first(data: Any) -> Any:
    return _as_numpy(next(iter(data.take(1))) if _is_tensorflow(data) else data[0])


def _as_numpy(arrays: Any) -> Any:
    return keras.tree.map_structure(lambda one: None if one is None else np.asarray(one), arrays)


def _with_weights(batch: Any, padding: bool) -> Any:
    """Return a batch as (x, y, sample_weight).

    For a copied batch, all weights are -0.0. For any other batch, they are the user's weights, or 1 if there are none.
    """
    x, y, sample_weights = keras.utils.unpack_x_y_sample_weight(batch)
    inputs = next(one for one in keras.tree.flatten(x) if one is not None)
    if sample_weights is None:
        return x, y, _weights(inputs, True, padding)

    def weights(one: Any) -> Any:  # None marks an output without weights.
        return _weights(inputs, True, padding) if one is None else _weights(one, False, padding)

    return x, y, keras.tree.map_structure(weights, sample_weights)


def _weights(weights: Any, inputs: bool, padding: bool) -> Any:
    """Return a batch's sample weights.

    ``weights`` contains the user's weights or, if ``inputs`` is True, the batch's inputs.
    """
    dtype, value = "float64" if keras.config.floatx() == "float64" else "float32", -0.0 if padding else 1.0
    if type(weights).__module__.partition(".")[0] == "tensorflow":
        import tensorflow as tf

        shape = tf.shape(weights)[:1] if inputs else tf.shape(weights)
        return tf.fill(shape, tf.constant(value, dtype)) if inputs or padding else tf.cast(weights, dtype)
    shape = np.shape(weights)[:1] if inputs else np.shape(weights)
    return np.full(shape, value, dtype) if inputs or padding else np.asarray(weights, dtype)
