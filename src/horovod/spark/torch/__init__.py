"""Spark estimators for PyTorch."""

try:
    import torch as _torch  # noqa: F401
except ImportError as _error:
    raise ImportError(
        f"horovod.spark.torch needs PyTorch, which cannot be imported ({_error}); install it with: "
        "pip install 'horovod[pytorch-spark]'"
    ) from _error

from horovod.spark.torch.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
