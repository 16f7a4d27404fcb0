"""Supported deep learning frameworks, for --check-build and --doctor."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Framework:
    """Deep learning framework that Horovod supports.

    Attributes:
        title: Name of the framework.
        face: Name of Horovod's module for the framework.
        modules: Import names of the framework, each with the pip distributions that provide it.
    """

    title: str
    face: str
    modules: Mapping[str, tuple[str, ...]]

    @property
    def distributions(self) -> list[str]:
        """Names of all pip distributions that contain the framework."""
        return [name for names in self.modules.values() for name in names]


FRAMEWORKS = (
    Framework("TensorFlow", "horovod.tensorflow", {"tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly")}),
    Framework("PyTorch", "horovod.torch", {"torch": ("torch",)}),
    Framework("Keras", "horovod.keras", {"keras": ("keras",), "tf_keras": ("tf-keras",)}),
    Framework("MXNet", "horovod.mxnet", {"mxnet": ("mxnet",)}),
    Framework("JAX", "horovod.jax", {"jax": ("jax",)}),
)
OF_DISTRIBUTION = {name: framework for framework in FRAMEWORKS for name in framework.distributions}


def described(versions: Mapping[str, str]) -> list[str]:
    """Describe the installed distributions, each as text such as `torch 2.13.0`."""
    return [f"{name} {version}" for name, version in sorted(versions.items())]


def titles(distributions: Collection[str]) -> set[str]:
    """Return the names of the frameworks that these pip distributions contain."""
    return {OF_DISTRIBUTION[name].title for name in distributions if name in OF_DISTRIBUTION}


def usable(distributions: Collection[str]) -> bool:
    """Return True if one of the pip distributions contains a supported framework."""
    return any(name in OF_DISTRIBUTION for name in distributions)
