"""The frameworks that this version can be used with, for --check-build and --doctor alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Framework:
    """`modules`: one of them is there where it is installed, from one of the distributions that pip knows. `face`: our
    module for it, empty while there is none; then perhaps another framework, `through`, brings it."""

    title: str
    face: str
    modules: Mapping[str, tuple[str, ...]]
    through: str = ""

    @property
    def distributions(self) -> list[str]:
        return [name for names in self.modules.values() for name in names]


FRAMEWORKS = (
    Framework("TensorFlow", "horovod.tensorflow", {"tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly")}),
    Framework("PyTorch", "horovod.torch", {"torch": ("torch",)}),
    Framework("Keras", "horovod.keras", {"keras": ("keras",), "tf_keras": ("tf-keras",)}),
    Framework("MXNet", "", {"mxnet": ("mxnet",)}),
    Framework("JAX", "", {"jax": ("jax",)}, through="Keras"),
)
OF_DISTRIBUTION = {name: framework for framework in FRAMEWORKS for name in framework.distributions}


def remark(framework: Framework, installed: Collection[str]) -> str:
    """What is to be known of a framework that is installed; empty: it can be used as it is. `installed`: all titles."""
    if framework.face:
        return ""
    return f"through {framework.through} only" if framework.through in installed else "not usable yet"


def described(versions: Mapping[str, str]) -> list[str]:
    """`torch 2.13.0`, `jax 0.10.2 (through Keras only)` for each distribution that is installed."""
    installed = titles(versions)
    texts = []
    for name, version in sorted(versions.items()):
        said = remark(OF_DISTRIBUTION[name], installed) if name in OF_DISTRIBUTION else ""
        texts.append(f"{name} {version}{f' ({said})' if said else ''}")
    return texts


def titles(distributions: Collection[str]) -> set[str]:
    """The frameworks that these distributions bring."""
    return {OF_DISTRIBUTION[name].title for name in distributions if name in OF_DISTRIBUTION}


def usable(distributions: Collection[str]) -> bool:
    """Is a framework among them that this version can be used with?"""
    return any(OF_DISTRIBUTION[name].face for name in distributions if name in OF_DISTRIBUTION)
