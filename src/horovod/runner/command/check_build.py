"""The `horovodrun --check-build` command, which reports the features of this installation.

It imports neither the frameworks nor the engine. `horovodrun --doctor` also uses the table of frameworks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec

from horovod._version import __version__
from horovod.common.devices import libraries, mpi_libraries, nvml
from horovod.common.devices.libraries import Library


@dataclass(frozen=True)
class Framework:
    """Deep learning framework that Horovod supports.

    Attributes:
        title: Name of the framework.
        frontend: Name of Horovod's module for the framework.
        modules: Import names of the framework, each with the pip distributions that provide it.
    """

    title: str
    frontend: str
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
    """Describe each installed distribution, such as `torch 2.13.0`."""
    return [f"{name} {version}" for name, version in sorted(versions.items())]


def usable(distributions: Collection[str]) -> bool:
    """Return True if one of the pip distributions provides a supported framework."""
    return any(name in OF_DISTRIBUTION for name in distributions)


def _present(module: str) -> bool:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return False
    # A namespace package, which is a folder without code, does not count as installed.
    return spec is not None and spec.origin is not None


def _version(packages: Sequence[str]) -> str:
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "of unknown version"


def _row(framework: Framework, found: Collection[str]) -> tuple[str, bool]:
    """Return the framework's name, and whether both the framework and Horovod's frontend for it are installed."""
    return framework.title, framework.title in found and _present(framework.frontend)


def _devices(environ: Mapping[str, str]) -> list[str]:
    """Return lines that describe the GPUs, their driver and NCCL, without loading CUDA or NCCL."""
    survey = nvml.survey()
    if survey.gpus:
        names = ", ".join(f"{gpu.index} {gpu.name} ({gpu.capability[0]}.{gpu.capability[1]})" for gpu in survey.gpus)
        lines = [f"NVIDIA driver {survey.driver}, CUDA {survey.cuda}", f"GPUs {names}"]
    else:
        lines = [f"no GPU: {survey.reason}"]
    lines += [error] if (error := libraries.driver_error(environ)) and survey.gpus else []
    library = libraries.nccl(environ)
    if not isinstance(library, Library):
        return [*lines, f"no NCCL: {library.reason}"]
    code = libraries.of_nccl(library)
    old = libraries.too_old(code) if code else "its version is not known"
    return [*lines, f"NCCL {libraries.text_of(code)}, {library.path} ({library.source})", *([old] if old else [])]


def report(verbose: bool = False) -> str:
    """Return tables of frameworks, controllers and tensor operations. [X] marks available ones.

    A tensor operation is available only if the engine can use it. An installed GPU library is not sufficient.

    Args:
        verbose: True to add versions and paths.
    """
    engine = _present("horovod._core")
    found = {  # Maps each installed framework's title to its importable module and the pip packages that provide it
        framework.title: next((m, packages) for m, packages in framework.modules.items() if _present(m))
        for framework in FRAMEWORKS
        if any(map(_present, framework.modules))
    }
    tables: tuple[tuple[str, tuple[tuple[str, bool], ...]], ...] = (
        ("Frameworks", tuple(_row(framework, found) for framework in FRAMEWORKS)),
        ("Controllers", (("MPI", False), ("Gloo", engine))),
        (
            "Tensor Operations",
            (
                ("NCCL", engine and isinstance(libraries.nccl(os.environ), Library)),
                ("DDL", False),
                ("CCL", False),
                ("MPI", engine and isinstance(mpi_libraries.find(os.environ), Library)),
                ("Gloo", engine),
            ),
        ),
    )
    lines = [f"Horovod v{__version__}:"]
    for title, rows in tables:
        lines += ["", f"Available {title}:"]
        lines += [f"    [{'X' if there else ' '}] {name}" for name, there in rows]
    if verbose:
        lines += ["", "Found:", f"    Python {sys.version.split()[0]} ({sys.executable})"]
        lines += [f"    {module} {_version(packages)}" for module, packages in found.values()]
        lines += [f"    {line}" for line in _devices(os.environ)]
        mpi = mpi_libraries.find(os.environ)
        lines += [f"    MPI {mpi.path} ({mpi.source})" if isinstance(mpi, Library) else f"    no MPI: {mpi.reason}"]
        lines += ["", "Gloo stands for the built-in engine and launcher."]
    return "\n".join(lines)
