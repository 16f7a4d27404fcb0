"""Frameworks that this version supports, for --check-build and --doctor."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Framework:
    """A framework that this version supports.

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
        """Names of all pip distributions that provide the framework."""
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
    """Return text such as `torch 2.13.0` for each installed distribution."""
    return [f"{name} {version}" for name, version in sorted(versions.items())]


def titles(distributions: Collection[str]) -> set[str]:
    """Return the titles of the frameworks that these distributions provide."""
    return {OF_DISTRIBUTION[name].title for name in distributions if name in OF_DISTRIBUTION}


def usable(distributions: Collection[str]) -> bool:
    """Return True if any of the distributions provides a supported framework."""
    return any(name in OF_DISTRIBUTION for name in distributions)
