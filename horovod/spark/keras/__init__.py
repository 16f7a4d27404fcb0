"""Estimators for Keras, 3 on any backend or 2 (tf_keras), on Spark."""

from horovod.spark.keras.estimator import KerasEstimator, KerasModel

__all__ = ["KerasEstimator", "KerasModel"]
