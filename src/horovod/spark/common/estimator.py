"""Base classes of the estimators and models of all frameworks: HorovodEstimator and HorovodModel."""

import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

from horovod.common.contract.log import warn_user

# Import this module first, because its error tells users what to install.
from horovod.spark.common.params import EstimatorParams, ModelParams

# isort: split
from pyspark.ml import Estimator, Model
from pyspark.ml.util import MLReadable, MLWritable

from horovod.spark.common import prepare
from horovod.spark.common.backend import Backend, SparkBackend
from horovod.spark.common.checks import refuse
from horovod.spark.common.columns import VECTOR, Column, check_shapes
from horovod.spark.common.datamodule import DataModule
from horovod.spark.common.file_store import AbstractFilesystemStore
from horovod.spark.common.params import ObjectsReader, ObjectsWriter, pickled
from horovod.spark.common.plan import TrainingPlan, TrainingResult
from horovod.spark.common.predict import Output, Predict, add_outputs
from horovod.spark.common.reader import Table, open_existing, open_table


class _Saved(MLReadable, MLWritable):  # type: ignore[misc]
    """Base class of Spark ML stages that can be saved and loaded.

    The methods are ``save(path)``, ``write().overwrite().save(path)`` and ``load(path)``.
    """

    @classmethod
    def read(cls) -> ObjectsReader:
        return ObjectsReader(cls)

    def write(self) -> ObjectsWriter:
        return ObjectsWriter(self)

    @classmethod
    def _packed(cls, objects: dict[str, Any]) -> dict[str, Any]:
        """Return the values of params in a form that can be pickled."""
        return objects

    @classmethod
    def _unpacked(cls, objects: dict[str, Any]) -> dict[str, Any]:
        """Restore the values of params from their pickled form. This is the inverse of `_packed`."""
        return objects


class HorovodEstimator(_Saved, Estimator, EstimatorParams):  # type: ignore[misc]
    """Estimator that trains a model on a DataFrame. It writes Parquet files to a store, from which the ranks read.

    The subclass of each framework implements ``_check``, ``_payload``, ``_train_in_rank`` and ``_model_of``.
    """

    _framework = ""
    _data_module: type

    def _check(self) -> None:
        """Raise ValueError if one of the framework-specific params has an invalid value."""

    def _feature_shapes(self) -> tuple[list[list[int]] | None, str]:
        """Return the shapes of the model's inputs, or None if unknown, and their source (for messages)."""
        return None, ""

    def _payload(self) -> dict[str, Any]:
        """Return the values of the framework-specific params that ranks need."""
        raise NotImplementedError

    def _train_in_rank(self) -> Any:
        """Return the function that each rank calls with a TrainingPlan. On rank 0, it must return a TrainingResult."""
        raise NotImplementedError

    def _model_of(self, outcome: TrainingResult, run_id: str, metadata: dict[str, Any]) -> Any:
        """Return a HorovodModel with the result of the training."""
        raise NotImplementedError

    def _environment(self) -> dict[str, str]:
        """Return environment variables for the ranks."""
        return {}

    def _module_arguments(self) -> dict[str, Any]:
        """Return framework-specific arguments for the DataModule."""
        return {}

    def fit(self, df: Any = None, params: Any = None, *, dataset: Any = None) -> Any:
        """Train on the rows of a DataFrame.

        Args:
            df: DataFrame with the rows to train on.
            params: Values of params for this call, by param, or a list of such dicts.
            dataset: Spark ML's name for ``df``. Only one of the two can be passed.

        Returns:
            Trained model, or a list of models if ``params`` is a list.

        Raises:
            ValueError: If columns, params or model do not match.
            StoreNotWritableError: If the store cannot be written.

        Exceptions of ranks are raised, too.
        """
        return super().fit(_one_of(df, dataset), params)

    def fit_on_parquet(self, params: Mapping[Any, Any] | None = None, dataset_idx: int | None = None) -> Any:
        """Train on existing Parquet files in ``store.get_train_data_path(dataset_idx)``.

        If the param ``validation`` is set, files in ``store.get_val_data_path(dataset_idx)`` are used for validation.

        Args:
            params: Values of params for this call, by param.
            dataset_idx: Number of the data set, or None for the data set without a number.

        Returns:
            Trained model.

        Raises:
            ValueError: If a file is damaged, or if columns, params or model do not match.
        """
        if params:
            return self.copy(params).fit_on_parquet(None, dataset_idx)
        store = self._check_all()
        store.check_writable(data=False)
        transformed = self.getTransformationFn() is not None
        train = open_existing(store, store.get_train_data_path(dataset_idx), self._requested_columns(), transformed)
        val = None
        if self.getValidation():
            val = open_existing(store, store.get_val_data_path(dataset_idx), self._requested_columns(), transformed)
        return self._train(store, train, val, dataset_idx)

    def _fit(self, dataset: Any) -> Any:
        """Write the DataFrame to the store, train the model, and remove the written data. ``fit`` calls this method."""
        store = self._check_all()
        transformed = self.getTransformationFn() is not None
        columns = prepare.columns_of(dataset, self._requested_columns(), transformed, self.getCompressSparseCols())
        prepare.check_validation(dataset, self.getValidation())
        self._backend().check()
        written = prepare.write(
            dataset,
            store,
            columns,
            self.getPartitionsPerProcess() * self._backend().num_processes(),
            self.getValidation(),
            self.getShuffle(),
            self.getRandomSeed(),
        )
        try:
            train = open_table(store, written.train, written.columns)
            val = open_table(store, written.val, written.columns) if written.val else None
            if (there := train.rows + (val.rows if val else 0)) != written.rows:
                raise RuntimeError(
                    f"{store.get_train_data_path(written.dataset_idx)} must have the {written.rows} rows that were "
                    f"written, got {there}"
                )
            return self._train(store, train, val, written.dataset_idx)
        finally:
            prepare.remove(store, written.dataset_idx)

    def _requested_columns(self) -> dict[str, list[str]]:
        weight = self.getSampleWeightCol()
        return {
            "feature_cols": self.getFeatureCols(),
            "label_cols": self.getLabelCols(),
            "sample_weight_col": [weight] if weight else [],
        }

    def _check_all(self) -> AbstractFilesystemStore:
        store = self.getStore()
        if not isinstance(store, AbstractFilesystemStore):
            raise refuse("store", store, "a Store, such as horovod.spark.common.store.Store.create(folder)")
        for name in ("model", "feature_cols", "label_cols"):
            if self.getOrDefault(name) in (None, []):
                raise ValueError(f"{name} must be given")
        weights, labels = self.getLossWeights(), self.getLabelCols()
        if weights is not None and len(weights) != len(labels):
            raise ValueError(
                f"loss_weights must have one number for each of {len(labels)} label_cols, got {len(weights)}"
            )
        if self.getBackend() is not None and self.getNumProc() is not None:
            raise ValueError("num_proc and backend are both given; give only one of them")
        if self.isSet("shuffle_buffer_size"):
            warn_user(
                "shuffle_buffer_size is deprecated and has no effect: rows are mixed over row groups",
                DeprecationWarning,
            )
        module = self.getDataModule()
        if module is not None:
            if not isinstance(module, type) or not issubclass(module, DataModule):
                raise refuse("data_module", module, "a subclass of horovod.spark.common.datamodule.DataModule")
            module.check()
        self._check()
        return store

    def _backend(self) -> Backend:
        return self.getBackend() or SparkBackend(self.getNumProc())

    def _train(self, store: AbstractFilesystemStore, train: Table, val: Table | None, idx: int | None) -> Any:
        by_name = {column.name: column for column in train.columns}
        if self.getTransformationFn() is None:
            labels = [by_name[name] for name in self.getLabelCols()]
            check_shapes("label", labels, self.getLabelShapes(), "label_shapes")
            if self.getDataModule() is None:
                check_shapes("feature", [by_name[name] for name in self.getFeatureCols()], *self._feature_shapes())
        run_id = self.getRunId() or f"{self._framework}_{time.strftime('%Y%m%d-%H%M%S')}_{secrets.token_hex(3)}"
        plan = self._plan(store, train, val, idx, run_id)
        results = self._backend().run(self._train_in_rank(), args=(plan,), env=self._environment())
        outcome = results[0]
        metadata = {
            "columns": [vars(column) for column in train.columns],
            "outputs": [[list(shape), dtype] for shape, dtype in outcome.outputs],
        }
        model = self._model_of(outcome, run_id, metadata)
        if store.saving_runs():
            _keep_history(store, f"{store.get_logs_path(run_id)}/history.json", outcome.history)
        return model

    def _plan(self, store: Any, train: Table, val: Table | None, idx: int | None, run_id: str) -> TrainingPlan:
        ranks, batch_size = self._backend().num_processes(), self.getBatchSize()
        val_batch_size = self.getValBatchSize() or batch_size
        path = store.get_checkpoint_path(run_id)
        goes_on = self.getRunId() is not None and store.saving_runs() and store.exists(path)
        return TrainingPlan(
            remote=store.to_remote(run_id, idx),
            train=train,
            val=val,
            features=tuple(self.getFeatureCols()),
            labels=tuple(self.getLabelCols()),
            weight=self.getSampleWeightCol(),
            label_shapes=None if self.getLabelShapes() is None else tuple(map(tuple, self.getLabelShapes())),
            batch_size=batch_size,
            val_batch_size=val_batch_size,
            epochs=self.getEpochs(),
            steps=self.getTrainStepsPerEpoch() or train.steps(ranks, batch_size),
            val_steps=self.getValidationStepsPerEpoch() or (val.steps(ranks, val_batch_size) if val else 0),
            shuffle=self.getShuffle(),
            seed=self.getRandomSeed(),
            verbose=self.getVerbose(),
            data_module=self.getDataModule() or self._data_module,
            module_arguments={
                "transform_fn": self.getTransformationFn(),
                "transformation_edit_fields": self.getTransformationEditFields(),
                "transformation_removed_fields": self.getTransformationRemovedFields(),
                "inmemory_cache_all": self.getInmemoryCacheAll(),
                "reader_pool_type": self.getReaderPoolType(),
                "train_reader_worker_count": self.getTrainReaderNumWorkers(),
                "val_reader_worker_count": self.getValReaderNumWorkers(),
                **self._module_arguments(),
            },
            use_gpu=self.getUseGpu(),
            mp_start_method=self.getMpStartMethod(),
            backward_passes_per_step=self.getBackwardPassesPerStep(),
            payload=pickled(self._payload()),
            checkpoint=store.read(path) if goes_on else None,
        )


def _keep_history(store: AbstractFilesystemStore, path: str, history: Mapping[str, Any]) -> None:
    """Write the history to the store. If this fails, only warn, so that the trained model is not lost."""
    try:
        store.write_text(path, json.dumps(history))
    except Exception as error:  # Catch all exceptions, because each file system has its own exception types.
        warn_user(f"the history could not be written to {path}: {type(error).__name__}: {error}")


class HorovodModel(_Saved, Model, ModelParams):  # type: ignore[misc]
    """Trained model that adds its outputs to DataFrames as columns.

    Frameworks' subclasses implement ``_predictor``.
    """

    def _predictor(self) -> tuple[Any, bytes]:
        """Return ``(load, payload)``. Each Spark task calls ``load(payload)`` to get the function that predicts."""
        raise NotImplementedError

    def transform(self, df: Any = None, params: Any = None, *, dataset: Any = None) -> Any:
        """Return the DataFrame with the model's outputs as additional columns.

        Args:
            df: DataFrame with the model's input columns.
            params: Dict that maps params to the values to use in this call.
            dataset: Alias of ``df``, as in Spark ML. Only one of the two can be passed.

        Raises:
            ValueError: If the model or a column is missing.
        """
        return super().transform(_one_of(df, dataset), params)

    def _transform(self, dataset: Any) -> Any:
        """Add the model's outputs to the DataFrame. ``transform`` calls this method."""
        if self.getModel() is None:
            raise ValueError("model must be given")
        metadata = {column["name"]: _column(column) for column in (self.getMetadata() or {}).get("columns", [])}
        wanted = {"feature_columns": self.getFeatureColumns() or []}
        columns = prepare.columns_of(dataset, wanted, False, False)
        features = []
        for column in columns:
            before = metadata.get(column.name)
            if before is not None and before.kind != "other":
                column = Column(column.name, column.kind, before.dtype, column.depth, before.shape)
            features.append(column)
        load, payload = self._predictor()
        return add_outputs(dataset, features, self._outputs(metadata), load, payload, self.getBatchSize())

    def _outputs(self, columns: Mapping[str, Column]) -> list[Output]:
        labels = self.getLabelColumns() or []
        shapes = (self.getMetadata() or {}).get("outputs", [])
        names = self.getOutputCols() or [f"{name}__output" for name in labels]
        if shapes and len(names) != len(shapes):
            raise ValueError(
                f"output_cols must have {len(shapes)} names, one for each output of the model, got {names}"
            )
        made = []
        for number, name in enumerate(names):
            shape, dtype = shapes[number] if shapes else (None, "float32")
            label = columns.get(labels[number]) if number < len(labels) else None
            vector = label is not None and label.kind in (VECTOR, "sparse")
            made.append(Output(name, None if shape is None else tuple(shape), dtype, vector))
        return made


def _one_of(df: Any, dataset: Any) -> Any:
    """Return the argument that is not None. Raises TypeError unless there is exactly one."""
    if (df is None) == (dataset is None):
        raise TypeError("exactly one of df and dataset must be a DataFrame, got both or neither")
    return dataset if df is None else df


def _column(fields: Mapping[str, Any]) -> Column:
    shape = fields["shape"]
    return Column(**{**fields, "shape": None if shape is None else tuple(shape)})


__all__ = ["HorovodEstimator", "HorovodModel", "Predict"]
