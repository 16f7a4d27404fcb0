"""Saving and loading of estimators and models as stages of Spark ML, on any file system that Spark supports.

Each is saved as ``metadata``, as for all stages, and ``objects``, a table with the values that are not JSON. Objects
are pickled together, so shared objects, such as a model's parameters in its optimizer, stay shared. Loading runs code
from the saved file, so load only trusted files.
"""

import json
import pickle
from typing import Any

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter

from horovod.common.contract import pickling

_PIECE = 16 << 20  # bytes in a row of the table


class ObjectsWriter(MLWriter):  # type: ignore[misc]
    """Spark ML writer for an estimator or model, whose ``_packed`` returns its params in a form to pickle."""

    def __init__(self, instance: Any) -> None:
        super().__init__()
        self._instance = instance

    def saveImpl(self, path: str) -> None:
        """Save the instance at `path`; raise ValueError naming a param that cannot be pickled."""
        given = {param.name: value for param, value in self._instance._paramMap.items() if value is not None}
        plain = {name: value for name, value in given.items() if _is_json(value)}
        objects = pickled(type(self._instance)._packed({n: v for n, v in given.items() if n not in plain}))
        session = self.sparkSession
        DefaultParamsWriter.saveMetadata(self._instance, path, session.sparkContext, paramMap=plain)
        pieces = [(begin // _PIECE, objects[begin : begin + _PIECE]) for begin in range(0, len(objects), _PIECE)]
        table = session.createDataFrame([(n, bytearray(data)) for n, data in pieces], "number int, data binary")
        table.coalesce(1).write.parquet(f"{path}/objects")


class ObjectsReader(MLReader):  # type: ignore[misc]
    """Spark ML reader for estimators or models of class ``cls``."""

    def __init__(self, cls: type) -> None:
        super().__init__()
        self._cls = cls

    def load(self, path: str) -> Any:
        session = self.sparkSession
        metadata = DefaultParamsReader.loadMetadata(path, session.sparkContext)
        name = metadata["class"].rpartition(".")[2]
        if name != self._cls.__name__:
            raise ValueError(f"{path} holds a {metadata['class']}, accepted is a {self._cls.__name__}")
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
    """Pickle the dict as a whole; raise ValueError naming an object that cannot be pickled."""
    try:
        return pickling.dumps(objects)
    except Exception as error:
        for name, value in objects.items():
            try:
                pickling.dumps(value)
            except Exception as reason:
                raise ValueError(f"{name} cannot be pickled: {type(reason).__name__}: {reason}") from reason
        raise ValueError(f"{', '.join(objects)} cannot be pickled: {error}") from error
