"""Estimator and model params: a table of all params, getters and setters, and saving as Spark ML stages."""

import copy
import functools
import inspect
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter

from horovod.common.contract import pickling
from horovod.spark.common import checks
from horovod.spark.common.checks import Check, Count, OneOf

# -- the table, to which frameworks add rows -------------------------------------------------------------------------

SEED = Count(0, (1 << 63) - 1)
"""Validator of seeds, which must fit into Spark's signed 64-bit integers."""


@dataclass(frozen=True)
class Row:
    """One entry of the table of params.

    Attributes:
        name: Name of the argument. The getter and setter are ``get`` and ``set`` plus this name in CamelCase.
        doc: Description of the param, as the end of a sentence.
        default: Default value, or None.
        check: Validator of values.
        shown: Default value to show in the constructor's signature.
    """

    name: str
    doc: str
    default: Any = None
    check: Check = checks.anything
    shown: Any = None

    @property
    def camel(self) -> str:
        return "".join(part.capitalize() for part in self.name.split("_"))


ESTIMATOR = (
    Row("num_proc", "ranks that train; spark.default.parallelism if not given", None, Count(1)),
    Row("store", "a Store: where data, checkpoints and logs lie"),
    Row("backend", "a Backend: how ranks are started; SparkBackend if not given"),
    Row("model", "the model to train"),
    Row("optimizer", "the optimizer, not distributed"),
    Row("loss", "the loss, or a list of one for each label"),
    Row("loss_weights", "factors of the losses, one for each label", None, checks.weights),
    Row("metrics", "metrics of each epoch", [], checks.listed),
    Row("callbacks", "callbacks of the framework, on every rank", [], checks.listed),
    Row("sample_weight_col", "column of each row's weight in the loss", None, checks.text),
    Row("feature_cols", "columns that the model takes, in its order", None, checks.names),
    Row("label_cols", "columns that the model is to learn, in the order of its outputs", None, checks.names),
    Row("continuous_cols", "accepted for old programs, without effect: was for NVTabular", None, checks.names),
    Row("categorical_cols", "accepted for old programs, without effect: was for NVTabular", None, checks.names),
    Row("validation", "the fraction of rows, or the column of a boolean, to validate with", None, checks.validation),
    Row("gradient_compression", "a class of the frontend's Compression", None),
    Row("compress_sparse_cols", "store sparse vectors as indices and values", False, checks.flag),
    Row("batch_size", "rows of a rank and step", 32, Count(1)),
    Row("val_batch_size", "rows of a rank and step of validation; batch_size if not given", None, Count(1)),
    Row("epochs", "passes over the rows", 1, Count(1)),
    Row("verbose", "0: silent, 1: rank 0 shows its progress, 2: a line an epoch", 1, Count(0), shown=1),
    Row("random_seed", "of the order of rows, the split and the framework", None, SEED),
    Row("shuffle_buffer_size", "deprecated, without effect: rows are mixed over whole files", None, Count(0)),
    Row("shuffle", "rows in another order in each epoch", True, checks.flag, shown=True),
    Row("partitions_per_process", "files of Parquet for each rank", 10, Count(1)),
    Row("run_id", "name of the run in the store; a new one if not given", None, checks.text),
    Row("train_steps_per_epoch", "steps of an epoch; all rows once if not given", None, Count(1)),
    Row("validation_steps_per_epoch", "steps of a validation; all rows once if not given", None, Count(1)),
    Row("transformation_fn", "function of a pandas.DataFrame, a batch, to another one", None, checks.function),
    Row(
        "transformation_edit_fields",
        "what transformation_fn adds: (name, dtype, shape, nullable) each",
        None,
        checks.listed,
    ),
    Row("transformation_removed_fields", "columns that transformation_fn removes", None, checks.names),
    Row("train_reader_num_workers", "batches that are read ahead", 2, Count(1)),
    Row("val_reader_num_workers", "batches of validation that are read ahead", 2, Count(1)),
    Row(
        "reader_pool_type",
        "thread, and process, which means the same: batches are read ahead in a thread; dummy: they are not read ahead",
        "thread",
        OneOf("thread", "process", "dummy"),
        shown="thread",
    ),
    Row("label_shapes", "shape of each label, without the rows, such as [[10]]", None, checks.shapes),
    Row("inmemory_cache_all", "read a rank's part once and keep it in memory", False, checks.flag, shown=False),
    Row("use_gpu", "train on GPUs where there are some", True, checks.flag, shown=True),
    Row(
        "mp_start_method",
        "of processes that ranks start: fork, spawn or forkserver",
        None,
        OneOf("fork", "spawn", "forkserver"),
    ),
    Row("backward_passes_per_step", "batches whose gradients are summed up before a step", 1, Count(1), shown=1),
    Row(
        "tensorflow_dataset_prefetch_buffer_size",
        "batches that are read ahead; train_reader_num_workers if 0",
        0,
        Count(0),
    ),
    Row("data_module", "class of what reads the data, a DataModule"),
)
"""Params of all estimators."""

MODEL = (
    Row("history", "by name of a figure, its value of each epoch", None, checks.mapping),
    Row("model", "the model that has been trained"),
    Row("feature_columns", "columns that the model takes, in its order", None, checks.names),
    Row("label_columns", "columns that the model has learnt", None, checks.names),
    Row(
        "output_cols",
        "columns that transform adds, one for each output; LABEL__output if not given",
        None,
        checks.names,
    ),
    Row("run_id", "name of the run in the store", None, checks.text),
    Row("_metadata", "what is known of the columns", None, checks.mapping),
    Row("batch_size", "rows that are predicted at once", 1024, Count(1)),
)
"""Params of all models."""


try:
    from pyspark.ml.param import Param, Params
except ImportError as error:
    raise ImportError(
        f"estimators need pyspark, which cannot be imported ({error}); install it with: pip install 'horovod[spark]'"
    ) from error


P = TypeVar("P", bound=type)


def _checked(row: Row, value: Any) -> Any:
    return row.check(row.name, value)


def _getter(row: Row) -> Callable[[Any], Any]:
    def get(self: Any) -> Any:
        return self.getOrDefault(row.name)

    get.__name__ = f"get{row.camel}"
    get.__doc__ = f"{row.name}: {row.doc}."
    return get


def _setter(row: Row) -> Callable[[Any, Any], Any]:
    def set_(self: Any, value: Any) -> Any:
        return self._assign({row.name: value})

    set_.__name__ = f"set{row.camel}"
    set_.__doc__ = f"Sets {row.name}: {row.doc}; None: back to its default, {row.default!r}. Returns self."
    return set_


def with_params(*rows: Row) -> Callable[[P], P]:
    """Return a class decorator that adds params, with getters and setters. `rows` describe the params."""

    def add(cls: P) -> P:
        for row in rows:
            setattr(cls, row.name, Param(Params._dummy(), row.name, row.doc, functools.partial(_checked, row)))
            for method in (_getter(row), _setter(row)):
                method.__module__, method.__qualname__ = cls.__module__, f"{cls.__name__}.{method.__name__}"
                setattr(cls, method.__name__, method)
        cls._rows = {**getattr(cls, "_rows", {}), **{row.name: row for row in rows}}  # type: ignore[attr-defined]
        return cls

    return add


def with_signature(order: str) -> Callable[[P], P]:
    """Return a class decorator that documents all params as keyword arguments of the constructor.

    It sets the signature and extends the docstring. The params in ``order``, separated by spaces, come first.
    """

    def add(cls: P) -> P:
        rows: dict[str, Row] = cls._rows  # type: ignore[attr-defined]
        first = order.split()
        names = [*first, *(name for name in rows if name not in first)]
        words = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=rows[name].shown) for name in names]
        cls.__signature__ = inspect.Signature(words)  # type: ignore[attr-defined]
        lines = "\n".join(f"    ``{name}``: {rows[name].doc}" for name in names)
        cls.__doc__ = (
            f"{inspect.getdoc(cls)}\n\nArguments, all of them keywords, with setters and getters:\n\n{lines}\n"
        )
        return cls

    return add


class _TableParams(Params):  # type: ignore[misc]
    """Spark ML Params that are defined by a table with one row per param."""

    _rows: dict[str, Row]

    def __init__(self, **values: Any) -> None:
        """Set the given params, and the default values of all other params.

        Args:
            **values: Values by param name. None counts as not given.

        Raises:
            TypeError: If a name is not a param.
            ValueError: If a value is invalid. The message contains the valid values.
        """
        super().__init__()
        if wrong := [name for name in values if name not in self._rows]:
            raise TypeError(f"{type(self).__name__} has no argument {wrong[0]!r}; there are {', '.join(self._rows)}")
        self._setDefault(**{name: copy.copy(row.default) for name, row in self._rows.items()})
        self._assign(values)

    def _assign(self, values: dict[str, Any]) -> Any:
        for name, value in values.items():
            if value is None:
                self.clear(self.getParam(name))
            else:
                self._set(**{name: value})
        return self


@with_params(*ESTIMATOR)
class EstimatorParams(_TableParams):
    """Params that all estimators share."""


@with_params(*MODEL)
class ModelParams(_TableParams):
    """Params that all models share."""


# -- saving and loading ----------------------------------------------------------------------------------------------
#
# A saved stage has two parts: ``metadata``, as in all stages of Spark ML, and ``objects``, a table of the values that
# JSON cannot represent. Objects are pickled together, so shared objects, such as a model's parameters in its optimizer,
# stay shared. Loading runs code from the saved file, so load only trusted files.

_PIECE = 16 << 20  # Maximum number of bytes of pickled data in each row of the table


class ObjectsWriter(MLWriter):  # type: ignore[misc]
    """Spark ML writer for an estimator or model.

    Its ``_packed`` method returns the params in a form that can be pickled.
    """

    def __init__(self, instance: Any) -> None:
        super().__init__()
        self._instance = instance

    def saveImpl(self, path: str) -> None:
        """Save the instance at `path`. Raises ValueError if a param cannot be pickled."""
        given = {param.name: value for param, value in self._instance._paramMap.items() if value is not None}
        plain = {name: value for name, value in given.items() if _is_json(value)}
        objects = pickled(type(self._instance)._packed({n: v for n, v in given.items() if n not in plain}))
        session = self.sparkSession
        DefaultParamsWriter.saveMetadata(self._instance, path, session.sparkContext, paramMap=plain)
        pieces = [(begin // _PIECE, objects[begin : begin + _PIECE]) for begin in range(0, len(objects), _PIECE)]
        table = session.createDataFrame([(n, bytearray(data)) for n, data in pieces], "number int, data binary")
        table.coalesce(1).write.parquet(f"{path}/objects")


class ObjectsReader(MLReader):  # type: ignore[misc]
    """Spark ML reader for saved estimators or models of class ``cls``."""

    def __init__(self, cls: type) -> None:
        super().__init__()
        self._cls = cls

    def load(self, path: str) -> Any:
        session = self.sparkSession
        metadata = DefaultParamsReader.loadMetadata(path, session.sparkContext)
        name = metadata["class"].rpartition(".")[2]
        if name != self._cls.__name__:
            raise ValueError(f"{path} must contain a {self._cls.__name__}, got a {metadata['class']}")
        rows = session.read.parquet(f"{path}/objects").sort("number").collect()
        objects = pickle.loads(b"".join(bytes(row.data) for row in rows))
        made = self._cls()
        made._resetUid(metadata["uid"])
        return made._assign({**metadata["paramMap"], **self._cls._unpacked(objects)})  # type: ignore[attr-defined]


def _is_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RuntimeError):
        return False


def pickled(objects: dict[str, Any]) -> bytes:
    """Pickle the dict. Raises ValueError if an object cannot be pickled, with the object's name in the message."""
    try:
        return pickling.dumps(objects)
    except Exception as error:
        for name, value in objects.items():
            try:
                pickling.dumps(value)
            except Exception as reason:
                raise ValueError(f"{name} cannot be pickled: {type(reason).__name__}: {reason}") from reason
        raise ValueError(f"{', '.join(objects)} cannot be pickled: {error}") from error
