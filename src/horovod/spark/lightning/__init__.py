"""Spark estimators for Lightning."""

from horovod.torch.lightning import package_of as _package_of

_package_of("horovod.spark.lightning")  # Raise ImportError with instructions if Lightning is not installed.

from horovod.spark.lightning.estimator import MIN_PL_VERSION, TorchEstimator, TorchModel  # noqa: E402

__all__ = ["MIN_PL_VERSION", "TorchEstimator", "TorchModel"]
