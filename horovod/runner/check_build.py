"""`horovodrun --check-build`: what this installation can do, found without importing a framework or the engine."""

from __future__ import annotations

from importlib.util import find_spec

from horovod._version import __version__

# Title, our module, the framework's module: both must be there.
FRAMEWORKS = (
    ("TensorFlow", "horovod.tensorflow", "tensorflow"),
    ("PyTorch", "horovod.torch", "torch"),
    ("MXNet", "horovod.mxnet", "mxnet"),
    ("JAX", "horovod.jax", "jax"),
)


def _present(module: str) -> bool:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return False
    # A folder without code (a namespace) is no module that could be used.
    return spec is not None and spec.origin is not None


def report() -> str:
    """The tables, with [X] for what is there."""
    engine = _present("horovod._core")
    tables: tuple[tuple[str, tuple[tuple[str, bool], ...]], ...] = (
        ("Frameworks", tuple((title, _present(face) and _present(module)) for title, face, module in FRAMEWORKS)),
        ("Controllers", (("MPI", False), ("Gloo", engine))),
        ("Tensor Operations", (("NCCL", False), ("DDL", False), ("CCL", False), ("MPI", False), ("Gloo", engine))),
    )
    lines = [f"Horovod v{__version__}:"]
    for title, rows in tables:
        lines += ["", f"Available {title}:"]
        lines += [f"    [{'X' if there else ' '}] {name}" for name, there in rows]
    return "\n".join(lines)
