#!/usr/bin/env python3
"""Check that files of the C++ core include only headers of their own layer and of lower layers.

The layers, lowest first, are in ``DIRECT``. The core must not include headers of Python, frameworks, MPI or accelerator
libraries. Python and framework headers belong in the bindings, and the core loads other libraries with dlopen. Prints
each offending line as ``file:line: reason``, and exits with 1 if there is any.

    python tools/check_includes.py [ROOT]
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

DIRECT = {
    "base": (),
    "transport": ("base",),
    "plan": ("base",),
    "nccl": ("base",),
    "mpi": ("base",),
    "kernels": ("base",),
    "collectives": ("transport", "plan"),
    "backends": ("collectives", "mpi"),
    "agree": ("base",),
    "devices": ("base", "kernels"),
    "engine": ("agree", "backends", "devices", "nccl"),
    "trace": ("engine",),
    "bindings": ("trace",),
}
FOREIGN = re.compile(
    r"(Python\.h|(nanobind|pybind11|torch|ATen|c10|tensorflow|tsl|xla|jax|mxnet|numpy)/|mpi\.h|nccl\.h|cuda)"
)
INCLUDE = re.compile(r"""\s*#\s*include\s*(?P<open>["<])(?P<path>[^">]+)[">]""")
# Layers of pure functions, which use no threads, locks, waits or system calls.
PURE = {"agree", "kernels"}
ACTING = re.compile(
    r"(thread|mutex|shared_mutex|atomic|condition_variable|future|semaphore|chrono|fstream|[a-z_]+\.h|sys/.*)$"
)
SUFFIXES = {".h", ".hpp", ".cc", ".cpp", ".cu", ".inc"}


def below(layer: str) -> set[str]:
    """Return the layers whose headers a file of `layer` can include."""
    found = {layer}
    for used in DIRECT[layer]:
        found |= below(used)
    return found


USES = {layer: below(layer) for layer in DIRECT}


def reason(layer: str, path: str, quoted: bool) -> str | None:
    """Return the reason why a file of `layer` must not include `path`, or None if it may."""
    if layer != "bindings" and FOREIGN.match(path):
        return f"the core includes no foreign header; {path} belongs to bindings/ or behind dlopen"
    if layer in PURE and not quoted and ACTING.match(path):
        return f"{layer} is pure, without threads, clocks and I/O; <{path}> belongs to engine/"
    if ".." in Path(path).parts:
        return f'"{path}" leaves its folder; write the path from core/'
    target = path.split("/")[0]
    if quoted and target in DIRECT and target not in USES[layer]:
        return f"{layer} may not include {path}; it may use {', '.join(sorted(USES[layer]))}"
    return None


def sources(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield each C++ file with its layer."""
    for layer in DIRECT:
        folder = root / "bindings" if layer == "bindings" else root / "core" / layer
        yield from ((layer, path) for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES)


def offences(root: Path) -> Iterator[str]:
    """Yield a message for each include that breaks a rule."""
    for layer, path in sources(root):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            match = INCLUDE.match(line)
            if match and (why := reason(layer, match["path"], match["open"] == '"')):
                yield f"{path.relative_to(root)}:{number}: {why}"


def main(arguments: list[str] | None = None) -> int:
    """Run the check, and return the exit code: 0 if it passes, 1 for violations, 2 if there are no files."""
    parser = argparse.ArgumentParser(description="Check that the includes of the C++ core go down only.")
    here = Path(__file__).resolve().parent.parent
    parser.add_argument("root", nargs="?", type=Path, default=here, help="of the repository")
    root = parser.parse_args(arguments).root
    if not any(True for _ in sources(root)):
        print(f"no C++ files below {root}/core", file=sys.stderr)
        return 2
    found = list(offences(root))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
