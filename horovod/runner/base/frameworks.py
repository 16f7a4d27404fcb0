"""The frameworks that this version can be used with, for --check-build and --doctor alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Framework:
    """`modules`: one of them is there where it is installed, from one of the distributions that pip knows. `face`: our
    module for it."""

    title: str
    face: str
    modules: Mapping[str, tuple[str, ...]]

    @property
    def distributions(self) -> list[str]:
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
    """`torch 2.13.0` for each distribution that is installed."""
    return [f"{name} {version}" for name, version in sorted(versions.items())]


def titles(distributions: Collection[str]) -> set[str]:
    """The frameworks that these distributions bring."""
    return {OF_DISTRIBUTION[name].title for name in distributions if name in OF_DISTRIBUTION}


def usable(distributions: Collection[str]) -> bool:
    """Is a framework among them that this version can be used with?"""
    return any(name in OF_DISTRIBUTION for name in distributions)
