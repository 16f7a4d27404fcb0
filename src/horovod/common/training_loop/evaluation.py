"""Exact distributed evaluation: mergeable metrics, and predictions gathered by sample id.

A metric's state is a dict of integers, which ranks merge by addition. Floating-point values are added as integers in
units of 2**-1074, the smallest positive float64. Sums therefore have no rounding error, and results do not depend on
the distribution of samples over ranks and batches. Only the final result is rounded.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from horovod.common.objects import allgather_object
from horovod.common.process_sets import ProcessSet, global_process_set

_KINDS = ("mean", "accuracy", "perplexity", "f1")


class Metric:
    """Metric whose distributed result exactly equals that of one process evaluating all samples.

    Update the metric with each batch, then call ``compute`` once on all ranks. Ranks can have any number of samples,
    including none.

    Example::

        accuracy, loss = hvd.Metric("accuracy"), hvd.Metric("mean")
        for images, labels in DataLoader(dataset, 256, sampler=hvd.EvalSampler(dataset)):
            logits = model(images)
            accuracy.update(logits, labels)
            loss.update(F.cross_entropy(logits, labels, reduction="none"))
        print(accuracy.compute(), loss.compute())

    Args:
        kind (str): One of these:

            - ``"mean"``: ``update(values, weights=None)``. A value with the weight n stands for the mean of n samples.
            - ``"accuracy"``: ``update(predictions, labels)``. Predictions are classes, or scores of shape (n, classes)
              with at least 2 classes.
            - ``"perplexity"``: ``update(losses, tokens)`` with summed losses in nats and their numbers of tokens. The
              result is exp(total loss / total tokens).
            - ``"f1"``: ``update(predictions, labels)``. The result is a dict with ``"confusion"`` (rows are labels,
              columns are predictions), ``"f1"`` for each class, their mean ``"macro_f1"``, and ``"accuracy"``.
        classes (int, optional): Number of classes for ``"f1"``, the same on all ranks. Default: the largest class that
            occurs, plus one.

    Raises:
        ValueError: If ``kind`` is unknown, or ``classes`` is less than 1.
    """

    def __init__(self, kind: str = "mean", *, classes: int | None = None) -> None:
        if kind not in _KINDS:
            raise ValueError(f"kind must be one of {', '.join(map(repr, _KINDS))}, got {kind!r}")
        if classes is not None and (not isinstance(classes, int) or classes < 1):
            raise ValueError(f"classes must be an integer of at least 1, got {classes!r}")
        self.kind, self.classes = kind, classes
        self._sums: Counter[Any] = Counter()

    def update(self, values: Any, other: Any = None, /) -> None:
        """Add the samples of a batch.

        Args:
            values: Values, losses or predictions, as an array, tensor, sequence or number.
            other: Weights, numbers of tokens or labels, one for each of ``values``. Default: weights of 1.

        Raises:
            ValueError: If the arguments have different numbers of entries, a weight is not finite, or a prediction or
                label is not a class.
        """
        if self.kind in ("accuracy", "f1"):
            if len(getattr(values, "shape", ())) == 2 and values.shape[1] > 1 and hasattr(values, "argmax"):
                values = values.argmax(1)  # reduce scores in the framework, which avoids copying them to the host
            numbers = _plain(values)
            predictions = [_class(one) for one in (numbers if isinstance(numbers, list) else [numbers])]
            pairs = _pairs(predictions, [_class(one) for one in _flat(_plain(other))])
            if self.kind == "accuracy":
                self._sums["correct"] += sum(prediction == label for prediction, label in pairs)
                self._sums["count"] += len(pairs)
            else:
                self._count(pairs)
            return
        entries = list(_flat(_plain(values)))
        if other is None and self.kind == "perplexity":
            raise ValueError("tokens must be given to update() of a perplexity")
        weights = [1] * len(entries) if other is None else list(_flat(_plain(other)))
        for weight in weights:
            if not math.isfinite(weight):
                raise ValueError(f"weights and numbers of tokens must be finite, got {weight}")
        for value, weight in _pairs(entries, weights):
            product = value * weight if self.kind == "mean" else value
            if math.isfinite(product):
                self._sums["total"] += _units(product)
            else:
                self._sums[str(float(product))] += 1
            self._sums["weight"] += _units(weight)

    def merge(self, other: "Metric") -> None:
        """Add the samples of another metric of the same kind."""
        if other.kind != self.kind:
            raise ValueError(f"other must be a metric of kind {self.kind!r}, got {other.kind!r}")
        self._sums.update(other._sums)

    def reset(self) -> None:
        """Reset the metric, discarding all samples."""
        self._sums.clear()

    def compute(self, process_set: ProcessSet = global_process_set) -> Any:
        """Return the result over all ranks' samples, without resetting the metric. All ranks of the set must call this.

        The result is NaN if there are no samples.

        Args:
            process_set (ProcessSet): Ranks that take part. Default: all ranks.

        Raises:
            ValueError: If ranks have metrics of different kinds or numbers of classes.
            HorovodInternalError: If a rank was lost.
        """
        whole = Metric(self.kind, classes=self.classes)
        mine = self.kind, self.classes
        for theirs, sums in allgather_object((mine, dict(self._sums)), "metric", process_set):
            if theirs != mine:
                raise ValueError(f"kind and classes must be the same on all ranks, got {mine} and {theirs}")
            whole._sums.update(sums)
        return whole._result()

    def _count(self, pairs: list[tuple[int, int]]) -> None:
        for pair in pairs:
            if min(pair) < 0 or (self.classes is not None and max(pair) >= self.classes):
                limit = "" if self.classes is None else f" and below {self.classes}"
                raise ValueError(f"predictions and labels must be classes of at least 0{limit}, got {pair}")
        self._sums.update((label, prediction) for prediction, label in pairs)

    def _result(self) -> Any:
        sums = self._sums
        if self.kind == "accuracy":
            return sums["correct"] / sums["count"] if sums["count"] else math.nan
        if self.kind == "f1":
            return _scores(sums, self.classes or 1 + max((max(pair) for pair in sums), default=-1))
        special = sum(float(name) for name in ("nan", "inf", "-inf") if sums[name])
        if special or special != special:
            mean = special
        else:
            mean = sums["total"] / sums["weight"] if sums["weight"] else math.nan
        if self.kind == "mean":
            return mean
        return math.exp(mean) if not mean > 709 else math.inf


def _scores(pairs: Mapping[tuple[int, int], int], classes: int) -> dict[str, Any]:
    confusion = [[pairs.get((label, one), 0) for one in range(classes)] for label in range(classes)]
    right = [confusion[one][one] for one in range(classes)]
    both = [sum(confusion[one]) + sum(row[one] for row in confusion) for one in range(classes)]
    f1 = [2 * hits / total if total else 0.0 for hits, total in zip(right, both, strict=True)]
    count = sum(map(sum, confusion))
    return {
        "confusion": confusion,
        "f1": f1,
        "macro_f1": math.fsum(f1) / classes if classes else math.nan,
        "accuracy": sum(right) / count if count else math.nan,
    }


def _units(value: float) -> int:
    """Convert a finite float or an integer to units of 2**-1074."""
    numerator, denominator = value.as_integer_ratio()
    # A float's denominator is a power of 2, so the result is exact.
    shift: int = 1075 - denominator.bit_length()
    return int(numerator) << shift


def _plain(values: Any) -> Any:
    """Convert an array or tensor of any framework to a number or nested lists of numbers."""
    if hasattr(values, "detach"):
        values = values.detach()
    for convert in ("tolist", "asnumpy", "numpy"):
        if hasattr(values, convert):
            numbers = getattr(values, convert)()
            return numbers.tolist() if hasattr(numbers, "tolist") else numbers
    return [_plain(one) for one in values] if isinstance(values, Iterable) else values


def _flat(numbers: Any) -> Iterator[Any]:
    if isinstance(numbers, list):
        for one in numbers:
            yield from _flat(one)
    elif numbers is not None:
        yield numbers


def _class(prediction: Any) -> int:
    """Return the predicted class: the value itself, or the index of the highest score."""
    scores = prediction if isinstance(prediction, list) else []
    if len(scores) > 1 and not isinstance(scores[0], list):
        return max(range(len(scores)), key=scores.__getitem__)
    if scores or int(prediction) != prediction:
        raise ValueError(
            "predictions must be classes, or scores of shape (n, classes) with at least 2 classes, and labels must be "
            f"classes, got {prediction}; for a single score per sample, compare it with a threshold first"
        )
    return int(prediction)


def _pairs(values: list[Any], others: list[Any]) -> list[tuple[Any, Any]]:
    if len(values) != len(others):
        raise ValueError(
            f"arguments of update() must have the same number of entries, got {len(values)} and {len(others)}"
        )
    return list(zip(values, others, strict=True))


def gather_rows(
    values: Any,
    ids: Any,
    process_set: ProcessSet,
    portable: Callable[[Any], Any],
    join: Callable[[list[Any], list[int]], Any],
) -> Any:
    """Implement ``gather_for_metrics`` for a framework.

    Args:
        values: Array or tensor with one row per sample, or a dict, list or tuple of these.
        ids: Ids of the samples.
        process_set: Ranks that take part.
        portable: Function that converts an array to a form that can be pickled.
        join: Function that concatenates arrays of several ranks and returns the rows with the given indices.

    Raises:
        ValueError: If the arguments of any rank are invalid.
    """
    keys = list(_flat(_plain(ids)))
    rows = {name: portable(part) for name, part in _parts(values).items()}
    wrong = next((len(part) for part in rows.values() if len(part) != len(keys)), None)
    reason = "" if wrong is None else f"values must have one row for each of {len(keys)} ids, got {wrong} rows"
    structure = dict if isinstance(values, Mapping) else next((t for t in (list, tuple) if isinstance(values, t)), None)
    from_all = allgather_object((reason, structure, keys, rows), "gather_for_metrics", process_set)
    for rank, (reason, *_) in zip(process_set.ranks or (), from_all, strict=True):
        if reason:
            raise ValueError(f"{reason} on rank {rank}")
    # Ignore ranks without samples, because their structure may differ.
    parts = [part for part in from_all if part[2]] or from_all[:1]
    place: dict[Any, int] = {}
    for index, key in enumerate(key for _, _, keys, _ in parts for key in keys):
        place.setdefault(key, index)
    order = [place[key] for key in sorted(place)]
    _, structure, _, first = parts[0]
    whole = {name: join([rows[name] for *_, rows in parts], order) for name in first}
    if structure is dict:
        return whole
    return whole[0] if structure is None else structure(whole.values())


def _parts(values: Any) -> dict[Any, Any]:
    if isinstance(values, Mapping):
        return dict(values)
    return dict(enumerate(values if isinstance(values, list | tuple) else [values]))


def gather_for_metrics(values: Any, ids: Any, process_set: ProcessSet = global_process_set) -> Any:
    """Gather the predictions of all ranks, ordered by sample id and without duplicates.

    Call this once after the evaluation, for metrics that are not sums over samples, such as AUC and mAP.

    Args:
        values: NumPy-compatible array with one row per sample, or a dict, list or tuple of such arrays.
        ids: Id of each sample, such as its index in the dataset.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        On all ranks, NumPy arrays in the structure of ``values``, with one row for each id.

    Raises:
        ValueError: If the numbers of rows and ids differ on a rank.
        HorovodInternalError: If a rank was lost.
    """
    import numpy as np

    def join(parts: list[Any], order: list[int]) -> Any:
        return np.concatenate(parts)[order]

    return gather_rows(values, ids, process_set, np.asarray, join)
