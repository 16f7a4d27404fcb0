"""`horovodrun --check-build`: what this installation can do, found without importing a framework or the engine."""

from __future__ import annotations

import sys
from importlib import metadata
from importlib.util import find_spec

from horovod._version import __version__

# Title, our module, and the modules of which one must be there too.
FRAMEWORKS = (
    ("TensorFlow", "horovod.tensorflow", ("tensorflow",)),
    ("PyTorch", "horovod.torch", ("torch",)),
    ("Keras", "horovod.keras", ("keras", "tf_keras")),
    ("MXNet", "horovod.mxnet", ("mxnet",)),
    ("JAX", "horovod.jax", ("jax",)),
)
# Several packages bring the module tensorflow; what has another name than its module.
_PACKAGES = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly"), "tf_keras": ("tf-keras",)}


def _present(module: str) -> bool:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return False
    # A folder without code (a namespace) is no module that could be used.
    return spec is not None and spec.origin is not None


def _version(module: str) -> str:
    for package in _PACKAGES.get(module, (module,)):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "of unknown version"


def _framework(face: str, modules: tuple[str, ...]) -> str | None:
    """The installed framework and its version, None when it or our part for it is not there."""
    there = next((module for module in modules if _present(module)), None)
    return f"{there} {_version(there)}" if there is not None and _present(face) else None


def report(verbose: bool = False) -> str:
    """The tables, with [X] for what is there; `verbose` adds what was found. For an operation only what the engine can
    use counts: a library for GPUs that is installed is not enough.
    """
    engine = _present("horovod._core")
    frameworks = [(title, _framework(face, modules)) for title, face, modules in FRAMEWORKS]
    tables: tuple[tuple[str, tuple[tuple[str, bool], ...]], ...] = (
        ("Frameworks", tuple((title, found is not None) for title, found in frameworks)),
        ("Controllers", (("MPI", False), ("Gloo", engine))),
        ("Tensor Operations", (("NCCL", False), ("DDL", False), ("CCL", False), ("MPI", False), ("Gloo", engine))),
    )
    lines = [f"Horovod v{__version__}:"]
    for title, rows in tables:
        lines += ["", f"Available {title}:"]
        lines += [f"    [{'X' if there else ' '}] {name}" for name, there in rows]
    if verbose:
        lines += ["", "Found:", f"    Python {sys.version.split()[0]} ({sys.executable})"]
        lines += [f"    {found}" for _, found in frameworks if found]
        lines += ["", "Gloo stands for the built-in engine and launcher."]
    return "\n".join(lines)
