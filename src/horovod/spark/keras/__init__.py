"""Spark estimators for Keras 3 on any backend, and for Keras 2 (tf_keras)."""

from horovod.spark.keras.estimator import KerasEstimator, KerasModel

__all__ = ["KerasEstimator", "KerasModel"]
